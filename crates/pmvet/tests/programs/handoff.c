/* One thread stores numbers to PM and hands each to another thread in ordinary memory, which copies it to PM. No thread reads PM.
 *
 *   handoff POOL early|late    hands a number over before, or after, it is persistent
 *   handoff POOL               ends with 1 if the copy is ahead of the number
 */
#include <emmintrin.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAST 20

struct pool {
    _Alignas(64) volatile uint64_t number;
    _Alignas(64) volatile uint64_t copy;
};

static struct pool *pm;
static atomic_uint_least64_t handed_over;
static atomic_uint_least64_t copied;

static void persist(const volatile void *at) {
    _mm_clflush((const void *)at);
    _mm_sfence();
}

static void *copy_all(void *unused) {
    for (uint64_t number = 1; number <= LAST; number++) {
        while (atomic_load(&handed_over) < number) {}
        pm->copy = number;
        persist(&pm->copy);
        atomic_store(&copied, number);
    }
    return unused;
}

int main(int argc, char **argv) {
    int fd = argc >= 2 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;
    if (fd < 0 || ftruncate(fd, 4096)) return 3;
    pm = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pm == MAP_FAILED) return 3;
    if (argc == 2) return pm->copy > pm->number;
    int early = strcmp(argv[2], "early") == 0;
    pthread_t copier;
    if (pthread_create(&copier, NULL, copy_all, NULL)) return 3;
    for (uint64_t number = 1; number <= LAST; number++) {
        pm->number = number;
        if (early) atomic_store(&handed_over, number);
        persist(&pm->number);
        if (!early) atomic_store(&handed_over, number);
        while (atomic_load(&copied) < number) {}
    }
    pthread_join(copier, NULL);
    return 0;
}
