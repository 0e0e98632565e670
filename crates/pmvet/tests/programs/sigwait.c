/* Waits for blocked signals in the way its argument says: already pending, sent to the process, to a new thread. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sigset_t set;

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
    pthread_t thread;
    pthread_create(&thread, NULL, waiter, NULL);
    if (!strcmp(how, "process")) kill(getpid(), SIGUSR1);
    else pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    return 0;
}
