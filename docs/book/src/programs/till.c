/* till POOL: reads lines. `p 5` takes 5 coins in, `v` takes the last payment back, `a` prints the average. */
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct till {
    _Alignas(64) uint64_t count;
    _Alignas(64) uint64_t coins[64];
};

__attribute__((target("clflushopt"))) static void persist(void *data)
{
    _mm_clflushopt(data);
    _mm_sfence();
}

static uint64_t recover(struct till *t)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < t->count; total += t->coins[i++])
        if (t->coins[i] == 0) {
            fprintf(stderr, "till: payment %lu is empty\n", i + 1);
            exit(1);
        }
    return total;
}

int main(int argc, char **argv)
{
    char line[64];
    uint64_t coins;
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof(struct till)) != 0)
        return 2;
    struct till *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint64_t total = recover(t);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "p %lu", &coins) == 1 && coins > 0 && t->count < 64) {
            t->coins[t->count] = coins;
            persist(&t->coins[t->count]);
            t->count += 1;
            persist(&t->count);
            total += coins;
        } else if (line[0] == 'v' && t->count > 0) {
            uint64_t *last = &t->coins[t->count - 1];
            total -= *last;
            *last = 0;
            persist(last);
            t->count -= 1;
            persist(&t->count);
        } else if (line[0] == 'a') {
            printf("till: %lu coins on average\n", total / t->count);
        }
    }
    return 0;
}
