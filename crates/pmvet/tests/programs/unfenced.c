/* A value and a flag that says that it counts. Unless -DFENCE is given, nothing orders the two on their way to PM.
 *
 *   unfenced POOL    if the flag is set, ends with 1 if the value is missing
 */
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

struct pool {
    _Alignas(64) volatile uint64_t value;
    _Alignas(64) volatile uint64_t counts;
};

static void flush(volatile void *at) {
    __asm__ volatile("clflushopt (%0)" : : "r"(at) : "memory");
}

static void fence(void) {
    __asm__ volatile("sfence" : : : "memory");
}

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;
    if (fd < 0 || ftruncate(fd, 4096)) return 3;
    struct pool *pm = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pm == MAP_FAILED) return 3;
    if (pm->counts) return pm->value != 42;
    pm->value = 42;
    flush(&pm->value);
#ifdef FENCE
    fence();
#endif
    pm->counts = 1;
    flush(&pm->counts);
    fence();
    return 0;
}
