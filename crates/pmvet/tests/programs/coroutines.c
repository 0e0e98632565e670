/* Coroutines by makecontext and swapcontext, with floating point state in them. */
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { COUNT = 50, ROUNDS = 200, STACK = 32768 };
static ucontext_t scheduler, each[COUNT];
static double results[COUNT];
static int alive = COUNT;

static void coroutine(int me) {
    double value = me;
    for (int i = 0; i < ROUNDS; i++) {
        value = value * 0.5 + me;
        swapcontext(&each[me], &scheduler);
    }
    results[me] = value;
    alive--;
}

int main(void) {
    static int done[COUNT];
    for (int i = 0; i < COUNT; i++) {
        getcontext(&each[i]);
        each[i].uc_stack.ss_sp = malloc(STACK);
        each[i].uc_stack.ss_size = STACK;
        each[i].uc_link = &scheduler;
        makecontext(&each[i], (void (*)(void))coroutine, 1, i);
    }
    while (alive > 0)
        for (int i = 0; i < COUNT; i++) {
            if (done[i]) continue;
            int before = alive;
            swapcontext(&scheduler, &each[i]);
            done[i] = alive != before;
        }
    double sum = 0;
    for (int i = 0; i < COUNT; i++) sum += results[i];
    printf("%.6f\n", sum);
    return 0;
}
