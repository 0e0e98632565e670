/* Code that is made and changed while the program runs, and the time stamp counter. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <x86intrin.h>

/* mov eax, imm32; ret */
static void write_function(unsigned char *at, int value) {
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

static void *worker(void *unused) {
    (void)unused;
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (int i = 0; i < 300; i++) {
        write_function(page, i);
        sum += ((int (*)(void))page)();
    }
    return (void *)sum;
}

int main(void) {
    unsigned char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int (*function)(void) = (int (*)(void))(page + 100);
    long sum = 0;
    for (int i = 0; i < 300; i++) {
        write_function(page + 100, i * 3);
        sum += function();
    }
    printf("written over: %ld\n", sum);

    sum = 0;
    for (int i = 0; i < 100; i++) {
        mprotect(page, 8192, PROT_READ | PROT_WRITE);
        write_function(page + 100, i * 5);
        mprotect(page, 8192, PROT_READ | PROT_EXEC);
        sum += function();
    }
    printf("write or execute: %ld\n", sum);

    /* Changes an instruction that comes right after the one that changes it: mov byte [rip+1], 7; mov al, 1; movzx eax, al; ret */
    static const unsigned char own[] = {0xc6, 0x05, 0x01, 0, 0, 0, 7, 0xb0, 1, 0x0f, 0xb6, 0xc0, 0xc3};
    mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(page + 200, own, sizeof own);
    printf("changes itself: %d\n", ((int (*)(void))(page + 200))());

    /* The same code at another address, and another code at the same address. */
    munmap(page, 8192);
    unsigned char *again = mmap(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    write_function(again + 100, 99);
    printf("mapped anew: %d\n", function());

    int file = memfd_create("code", 0);
    unsigned char text[64] = {0};
    write_function(text, 1234);
    FILE *out = fdopen(file, "w");
    fwrite(text, 1, sizeof text, out);
    fflush(out);
    int (*mapped)(void) = (int (*)(void))mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    printf("from a file: %d\n", mapped());

    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < 4; i++) {
        void *answer;
        pthread_join(threads[i], &answer);
        printf("by a thread: %ld\n", (long)answer);
    }

    unsigned processor;
    unsigned long long earlier = __rdtsc(), backwards = 0;
    for (int i = 0; i < 10000; i++) {
        unsigned long long now = i % 2 ? __rdtsc() : __rdtscp(&processor);
        backwards += now < earlier && earlier - now > 1000000000;
        earlier = now;
    }
    printf("time ran backwards: %llu\n", backwards);
    return 0;
}
