/* SSE, AVX, AVX2 and AVX-512 where the processor has them, x87, string instructions, flags and atomics. */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

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

int main(void) {
    for (int i = 0; i < 4096; i++) from[i] = (unsigned char)(i * 7 + (i >> 5));
    strings();
    flags();
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
