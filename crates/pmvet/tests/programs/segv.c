/* Catches SIGSEGV in three ways: jumps out, repairs the page and goes on, and survives a stack overflow. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>

static sigjmp_buf back;
static char *page;
static volatile int repaired, overflows;

static void jump_out(int number, siginfo_t *info, void *context) {
    (void)context;
    siglongjmp(back, info->si_addr == (void *)64 && number == SIGSEGV && info->si_code == SEGV_MAPERR ? 1 : 2);
}

static void repair(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    char *at = info->si_addr;
    if (at < page || at >= page + 64 * 4096) abort();
    mprotect((void *)((size_t)at & ~4095ul), 4096, PROT_READ | PROT_WRITE);
    repaired++;
}

static void skip(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    ucontext_t *state = context;
    state->uc_mcontext.gregs[REG_RIP] += 2; /* ud2 */
    state->uc_mcontext.gregs[REG_R12] = 4711;
}

static void overflow(int number) {
    (void)number;
    overflows++;
    siglongjmp(back, 3);
}

static int deeper(volatile char *above) {
    volatile char room[4096];
    room[0] = above[0] + 1;
    return deeper(room) + room[0];
}

static void handle(int number, void (*action)(int, siginfo_t *, void *), int flags) {
    struct sigaction how = {.sa_sigaction = action, .sa_flags = SA_SIGINFO | flags};
    sigaction(number, &how, NULL);
}

int main(void) {
    volatile int jumps = 0;
    handle(SIGSEGV, jump_out, 0);
    for (int i = 0; i < 100; i++) {
        int how = sigsetjmp(back, 1);
        if (how == 1) jumps = jumps + 1;
        else if (how == 0) *(volatile int *)(size_t)64 = i;
    }
    printf("jumped out %d times\n", jumps);

    page = mmap(NULL, 64 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    handle(SIGSEGV, repair, 0);
    memset(page, 7, 64 * 4096);
    long sum = 0;
    for (int i = 0; i < 64 * 4096; i++) sum += page[i];
    printf("repaired %d pages, sum %ld\n", repaired, sum);

    handle(SIGILL, skip, 0);
    long changed;
    __asm__ volatile("xor %%r12, %%r12; ud2; mov %%r12, %0" : "=r"(changed)::"r12");
    printf("register changed by the handler: %ld\n", changed);

    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    setrlimit(RLIMIT_STACK, &limit);
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&other, NULL);
    struct sigaction how = {.sa_handler = overflow, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &how, NULL);
    char start = 0;
    for (int i = 0; i < 3; i++)
        if (sigsetjmp(back, 1) == 0) deeper(&start);
    printf("stack overflows survived: %d\n", overflows);
    return 0;
}
