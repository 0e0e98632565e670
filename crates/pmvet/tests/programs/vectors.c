/* SSE, AVX, AVX2 and AVX-512 where the processor has them, x87, string instructions, flags and atomics. */
#include <fcntl.h>
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char from[4096], to[4096];

static unsigned sum(const void *data, size_t size) {
    unsigned all = 0;
    for (size_t i = 0; i < size; i++) all = all * 31 + ((const unsigned char *)data)[i];
    return all;
}

__attribute__((target("avx2"))) static void avx2(void) {
    __m256i index = _mm256_setr_epi32(0, 9, 18, 27, 36, 45, 54, 63), all = _mm256_setzero_si256();
    for (int i = 0; i < 100; i++) {
        __m256i one = _mm256_i32gather_epi32((const int *)(from + i * 16), index, 4);
        all = _mm256_add_epi32(_mm256_mullo_epi32(all, _mm256_set1_epi32(31)), one);
        _mm256_maskstore_epi32((int *)(to + i * 32), one, all);
        _mm256_stream_si256((__m256i *)(to + 3200), all);
    }
    _mm_sfence();
    printf("avx2 %u %u\n", sum(&all, sizeof all), sum(to, sizeof to));
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) static void avx512(void) {
    __m512i all = _mm512_setzero_si512();
    __m512i index = _mm512_setr_epi32(0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75);
    for (int i = 0; i < 40; i++) {
        __m512i one = _mm512_loadu_si512(from + i * 40);
        __mmask16 mask = _mm512_cmpgt_epi32_mask(one, all);
        all = _mm512_mask_add_epi32(all, mask, all, one);
        all = _mm512_add_epi32(all, _mm512_set1_epi32(i));
        _mm512_mask_i32scatter_epi32(to + i * 32, mask, index, all, 4);
        _mm512_mask_storeu_epi8(to + i * 3, 0x5555555555555555ull, all);
    }
    printf("avx512 %u %u\n", sum(&all, sizeof all), sum(to, sizeof to));
}

static void strings(void) {
    unsigned char *target = to;
    const unsigned char *source = from;
    size_t count = 1000;
    __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(count)::"memory");
    count = 77;
    __asm__ volatile("rep stosq" : "+D"(target), "+c"(count) : "a"(0x1122334455667788) : "memory");
    size_t left = 4096;
    const unsigned char *scan = from;
    __asm__ volatile("repne scasb" : "+D"(scan), "+c"(left) : "a"(200));
    target = to + 4095;
    source = from + 2000;
    count = 500;
    __asm__ volatile("std; rep movsb; cld" : "+D"(target), "+S"(source), "+c"(count)::"memory");
    printf("strings %u %zu\n", sum(to, sizeof to), left);
}

/* The flags and all registers survive loads and stores in between. */
static void flags(void) {
    unsigned long seen = 0, all = 0;
    static volatile int word;
    for (int i = 0; i < 256; i++) {
        __asm__ volatile(
            "movb %b1, %%al; addb $0x7f, %%al; movl $5, %2; movl %2, %%ecx; pushf; pop %0"
            : "=r"(seen)
            : "r"(i), "m"(word)
            : "rax", "rcx", "memory", "cc");
        all = all * 31 + (seen & 0x8d5);
    }
    printf("flags %lu\n", all);
}

/* Below the stack pointer is the leaf function's own: nobody else may write there. */
__attribute__((noinline)) static long red_zone(long x) {
    long answer;
    __asm__ volatile(
        "movq %1, -8(%%rsp); movq %1, -64(%%rsp); movq %1, -120(%%rsp); movq -8(%%rsp), %0; addq -64(%%rsp), %0; addq -120(%%rsp), %0"
        : "=&r"(answer)
        : "r"(x)
        : "memory");
    return answer;
}

/* Every part of every vector and mask register survives stores to PM: the first to a page, one across two lines, a
   read-modify-write of an odd size. `table` is what is loaded and then what is found. */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define EACH_MORE(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define STORES "movq %%rax, (%2); movq %%rax, 60(%2); lock addw $3, 130(%2); lock cmpxchg16b 192(%2);"

#define LOAD_YMM(n) "vmovdqu " #n "*64(%0), %%ymm" #n ";"
#define SAVE_YMM(n) "vmovdqu %%ymm" #n ", " #n "*64(%1);"
__attribute__((target("avx2"))) static void kept_ymm(const char *table, char *found, char *pm) {
    __asm__ volatile(EACH(LOAD_YMM) STORES EACH(SAVE_YMM) "vzeroupper" ::"r"(table), "r"(found), "r"(pm)
                     : "memory", "cc", "rax", "rdx");
}

#define LOAD_ZMM(n) "vmovdqu64 " #n "*64(%0), %%zmm" #n ";"
#define SAVE_ZMM(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%1);"
#define LOAD_K(n) "kmovq 2048+" #n "*8(%0), %%k" #n ";"
#define SAVE_K(n) "kmovq %%k" #n ", 2048+" #n "*8(%1);"
#define EACH_K(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
__attribute__((target("avx512f,avx512bw"))) static void kept_zmm(const char *table, char *found, char *pm) {
    __asm__ volatile(EACH(LOAD_ZMM) EACH_MORE(LOAD_ZMM) EACH_K(LOAD_K) STORES EACH(SAVE_ZMM) EACH_MORE(SAVE_ZMM)
                         EACH_K(SAVE_K) "vzeroupper" ::"r"(table), "r"(found), "r"(pm)
                     : "memory", "cc", "rax", "rdx");
}

static void kept(void) {
    static char table[2112], found[2112];
    char path[] = "/dev/shm/pmvet-vectors-XXXXXX";
    int fd = mkstemp(path);
    char *pm = ftruncate(fd, 1 << 16) == 0 ? mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;
    int changed = 0;
    for (int page = 0; page < 16; page++) {
        for (size_t i = 0; i < sizeof table; i++) table[i] = (char)(i * 13 + page * 29 + 1);
        memcpy(found, table, sizeof table);
        if (__builtin_cpu_supports("avx512bw"))
            kept_zmm(table, found, pm + page * 4096);
        else if (__builtin_cpu_supports("avx2"))
            kept_ymm(table, found, pm + page * 4096);
        changed += memcmp(found, table, sizeof table) != 0;
    }
    unlink(path);
    printf("kept, but for %d\n", changed);
}

int main(void) {
    for (int i = 0; i < 4096; i++) from[i] = (unsigned char)(i * 7 + (i >> 5));
    strings();
    flags();
    kept();
    printf("red zone %ld\n", red_zone(14));
    if (__builtin_cpu_supports("avx2")) avx2();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) avx512();
    __m128 roots = _mm_sqrt_ps(_mm_setr_ps(1, 2, 3, 4));
    printf("sse %u\n", sum(&roots, sizeof roots));
    long double x = 1;
    for (int i = 0; i < 1000; i++) x = x * 1.001L + sinl(x) / 7;
    printf("x87 %.15Lg\n", x);
    unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x6000);
    volatile float third = 1.0f;
    third /= 3;
    _mm_setcsr(control);
    printf("rounding %.10f\n", third);
    long counter = 0;
    for (int i = 0; i < 1000; i++) {
        __atomic_fetch_add(&counter, i, __ATOMIC_SEQ_CST);
        __atomic_fetch_xor(&counter, 5, __ATOMIC_SEQ_CST);
        long expected = counter;
        __atomic_compare_exchange_n(&counter, &expected, counter + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    printf("atomics %ld\n", counter);
    return 0;
}
