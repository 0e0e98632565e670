/* Memory of every kind: brk, mremap, madvise, fixed mappings, protections, deep recursion, a large stack. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static char big[64 << 20];

static unsigned sum(const char *from, size_t size) {
    unsigned all = 0;
    for (size_t i = 0; i < size; i++) all = all * 31 + (unsigned char)from[i];
    return all;
}

static long recurse(long n) {
    volatile char room[64];
    room[n % 64] = (char)n;
    return n == 0 ? 0 : recurse(n - 1) + room[n % 64] - (char)n + 1;
}

static void *deep(void *n) { return (void *)recurse((long)n); }

int main(void) {
    /* The C library must not need the heap in between. */
    static char buffer[65536];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    char *start = sbrk(0);
    for (int i = 0; i < 100; i++) {
        char *more = sbrk(12288);
        if (more == (char *)-1 || more != start + i * 12288) return 1;
        memset(more, i, 12288);
    }
    printf("heap %u\n", sum(start, 1228800));
    printf("shrunk %d\n", brk(start) == 0 && sbrk(0) == start);

    char *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 1 << 20; i++) area[i] = (char)(i >> 7);
    unsigned before = sum(area, 1 << 20);
    area = mremap(area, 1 << 20, 8 << 20, MREMAP_MAYMOVE);
    printf("moved: %d, new part zero: %d\n", sum(area, 1 << 20) == before, area[7 << 20] == 0);
    area = mremap(area, 8 << 20, 1 << 20, 0);
    printf("shrunk: %d\n", sum(area, 1 << 20) == before);
    madvise(area, 4096, MADV_DONTNEED);
    printf("dropped: %d\n", area[0] == 0 && area[4095] == 0);
    char *fixed = mmap(area + 8192, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("fixed: %d\n", fixed == area + 8192 && fixed[0] == 0);
    void *taken = mmap(area, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("taken: %s\n", taken == MAP_FAILED ? strerror(errno) : "no");
    printf("unmapped: %d\n", munmap(area, 1 << 20));
    printf("not there: %s\n", msync(area, 4096, MS_SYNC) ? strerror(errno) : "still there");
    unsigned char resident[4];
    printf("mincore: %d\n", mincore(big, 4 * 4096 - 1, resident) == 0 || errno == EINVAL);

    int file = memfd_create("file", 0);
    if (ftruncate(file, 65536)) return 2;
    char *one = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *two = mmap(NULL, 65536, PROT_READ, MAP_SHARED, file, 0);
    strcpy(one + 5000, "seen through both");
    printf("%s\n", two + 5000);

    for (size_t i = 0; i < sizeof big; i += 4096) big[i] = (char)(i >> 12);
    printf("static %u\n", sum(big + (10 << 20), 1 << 20));

    printf("deep %ld\n", recurse(30000));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 20);
    pthread_t thread;
    void *answer;
    if (pthread_create(&thread, &attributes, deep, (void *)1000000)) return 3;
    pthread_join(thread, &answer);
    printf("deeper %ld\n", (long)answer);
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? 64 << 20 : limit.rlim_max;
    printf("stack limit set: %d\n", setrlimit(RLIMIT_STACK, &limit));
    printf("deep again %ld\n", recurse(limit.rlim_cur >= 64 << 20 ? 150000 : 30000));
    return 0;
}
