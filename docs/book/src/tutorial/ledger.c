/* ledger POOL N: appends N payments to a ledger in persistent memory. */
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct payment {
    _Alignas(64) uint64_t number; /* 1, 2, 3, ... */
    uint64_t cents;
};

struct ledger {
    _Alignas(64) uint64_t count;
    struct payment payments[1000];
};

/* Writes the cache lines of a range back to PM, and waits until they are there. */
__attribute__((target("clflushopt"))) static void persist(void *data, size_t size)
{
    for (uintptr_t at = (uintptr_t)data & ~63ul; at < (uintptr_t)data + size; at += 64)
        _mm_clflushopt((void *)at);
    _mm_sfence();
}

/* Runs at each start: is everything that counts there? */
static void recover(struct ledger *l)
{
    for (uint64_t i = 0; i < l->count; i++)
        if (l->payments[i].number != i + 1 || l->payments[i].cents == 0) {
            fprintf(stderr, "ledger: payment %lu is damaged\n", i + 1);
            exit(1);
        }
}

static void append(struct ledger *l, uint64_t cents)
{
    struct payment *p = &l->payments[l->count];
    l->count += 1;
    persist(&l->count, sizeof l->count);
    p->number = p - l->payments + 1;
    p->cents = cents;
    persist(p, sizeof *p);
}

int main(int argc, char **argv)
{
    int fd = argc == 3 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof(struct ledger)) != 0)
        return 2;
    struct ledger *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (l == MAP_FAILED)
        return 2;
    recover(l);
    for (int n = atoi(argv[2]); n > 0; n--)
        append(l, 100 * n);
    printf("ledger: %lu payments\n", l->count);
    return 0;
}
