/* One thread stores numbers and persists each only when another thread has copied it to PM: the copy survives a crash that the number does
 * not, whatever the schedule.
 *
 *   copies POOL    if there is a pool, ends with 1 if the copy is ahead of the number
 */
#include <emmintrin.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAST 20

struct pool {
    _Alignas(64) atomic_uint_least64_t number;
    _Alignas(64) atomic_uint_least64_t copy;
};

static struct pool *pm;
static atomic_uint_least64_t copied;

static void persist(void *at) {
    _mm_clflush(at);
    _mm_sfence();
}

static void *copy_all(void *unused) {
    for (uint64_t last = 0; last < LAST;) {
        uint64_t number = atomic_load_explicit(&pm->number, memory_order_acquire);
        if (number == last) continue;
        atomic_store_explicit(&pm->copy, number, memory_order_release);
        persist(&pm->copy);
        atomic_store(&copied, last = number);
    }
    return unused;
}

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;
    struct stat pool;
    if (fd < 0 || fstat(fd, &pool) || ftruncate(fd, 4096)) return 3;
    pm = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pm == MAP_FAILED) return 3;
    if (pool.st_size > 0) return pm->copy > pm->number;
    pthread_t copier;
    if (pthread_create(&copier, NULL, copy_all, NULL)) return 3;
    for (uint64_t number = 1; number <= LAST; number++) {
        atomic_store_explicit(&pm->number, number, memory_order_release);
        while (atomic_load(&copied) < number) {}
        persist(&pm->number);
    }
    pthread_join(copier, NULL);
    return 0;
}
