/* Moves money between two accounts, with libpmemobj's transactions. Unless -DADD is given, the second account is not added to them.
 *
 *   account POOL create    makes the pool
 *   account POOL           ends with 1 if money was made or lost; otherwise moves some
 */
#include <libpmemobj.h>
#include <stdint.h>

#define ALL 100

POBJ_LAYOUT_BEGIN(account);
POBJ_LAYOUT_ROOT(account, struct bank);
POBJ_LAYOUT_END(account);

struct bank {
    uint64_t first;
    uint64_t room[8];
    uint64_t second;
};

static void move(PMEMobjpool *pool, TOID(struct bank) bank, uint64_t amount) {
    TX_BEGIN(pool) {
        TX_ADD_FIELD(bank, first);
#ifdef ADD
        TX_ADD_FIELD(bank, second);
#endif
        D_RW(bank)->first -= amount;
        D_RW(bank)->second += amount;
    } TX_END
}

static void begin(PMEMobjpool *pool, TOID(struct bank) bank) {
    TX_BEGIN(pool) {
        TX_ADD(bank);
        D_RW(bank)->first = ALL;
    } TX_END
}

int main(int argc, char **argv) {
    const char *layout = POBJ_LAYOUT_NAME(account);
    PMEMobjpool *pool = argc == 3   ? pmemobj_create(argv[1], layout, PMEMOBJ_MIN_POOL, 0644)
                        : argc == 2 ? pmemobj_open(argv[1], layout)
                                    : NULL;
    if (!pool) return 3;
    TOID(struct bank) bank = POBJ_ROOT(pool, struct bank);
    if (argc == 3) {
        begin(pool, bank);
        pmemobj_close(pool);
        return 0;
    }
    if (D_RO(bank)->first + D_RO(bank)->second != ALL) return 1;
    for (int i = 0; i < 3; i++)
        move(pool, bank, 5);
    pmemobj_close(pool);
    return 0;
}
