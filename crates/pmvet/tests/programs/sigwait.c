/* Waits for blocked signals in the way its argument says: already pending, sent to the process, to a new thread, several in a queue. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sigset_t set;
static volatile int values;

static void on_value(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    values = values * 10 + info->si_value.sival_int;
}

static void *waiter(void *unused) {
    (void)unused;
    int got = 0;
    sigwait(&set, &got);
    printf("a thread got %d\n", got);
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (!strcmp(how, "pending")) {
        kill(getpid(), SIGUSR1);
        sigset_t pending;
        sigpending(&pending);
        printf("pending: %d\n", sigismember(&pending, SIGUSR1));
        waiter(NULL);
        return 0;
    }
    if (!strcmp(how, "queued")) {
        struct sigaction action = {.sa_sigaction = on_value, .sa_flags = SA_SIGINFO};
        sigaction(SIGRTMIN, &action, NULL);
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN);
        sigprocmask(SIG_BLOCK, &set, NULL);
        for (int i = 1; i <= 5; i++) sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        printf("queued: %d\n", values);
        return 0;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, waiter, NULL);
    if (!strcmp(how, "process")) kill(getpid(), SIGUSR1);
    else pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    return 0;
}
