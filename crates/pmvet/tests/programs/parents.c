/* What a parent hears of the end of its children: nothing, by a handler, by descriptor, or not even a status. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t heard;

static void hears(int n) {
    (void)n;
    heard = 1;
}

static void on(void (*handler)(int)) {
    struct sigaction how = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &how, NULL);
}

static pid_t child(int status) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(status);
    return child;
}

/* Many children end while the parent waits for the last word of the last one. */
static int crowd(void) {
    int ends[2], interrupted = 0;
    if (pipe(ends)) exit(1);
    for (int i = 0; i < 60; i++) {
        fflush(stdout);
        if (fork() == 0) {
            if (i == 59) while (write(ends[1], "x", 1) != 1) {}
            _exit(0);
        }
    }
    char byte;
    while (read(ends[0], &byte, 1) < 0 && errno == EINTR) interrupted++;
    while (wait(NULL) > 0) {}
    close(ends[0]);
    close(ends[1]);
    return interrupted;
}

static void *blocks(void *nothing) {
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return nothing;
}

int main(void) {
    printf("default: interrupted %d times\n", crowd());
    pthread_t thread;
    pthread_create(&thread, NULL, blocks, NULL);
    pthread_join(thread, NULL);
    printf("blocked by a thread that is gone: interrupted %d times\n", crowd());

    on(hears);
    for (int i = 0; i < 5; i++) {
        heard = 0;
        int status;
        waitpid(child(i), &status, 0);
        printf("handler: %d, status %d\n", (int)heard, WEXITSTATUS(status));
    }

    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &old);
    sigset_t none;
    sigemptyset(&none);
    for (int i = 0; i < 20; i++) {
        heard = 0;
        pid_t one = child(i);
        int turns = 0;
        for (; !heard; turns++) sigsuspend(&none);
        waitpid(one, NULL, 0);
        if (turns != 1) printf("waited for a signal %d times\n", turns);
    }

    on(SIG_DFL);
    heard = 0;
    siginfo_t info;
    pid_t early = child(7);
    waitid(P_PID, early, &info, WEXITED | WNOWAIT);
    on(hears);
    sigprocmask(SIG_SETMASK, &old, NULL);
    printf("blocked, then handled: %d\n", (int)heard);
    waitpid(early, NULL, 0);

    heard = 0;
    printf("system: %d\n", system("exit 3") >> 8);
    fflush(stdout);
    waitpid(child(0), NULL, 0);
    printf("still handled: %d\n", (int)heard);

    on(SIG_DFL);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int descriptor = signalfd(-1, &set, 0);
    pid_t last = child(9);
    struct signalfd_siginfo seen;
    ssize_t got = read(descriptor, &seen, sizeof seen);
    printf("by descriptor: %d, %d, %d\n", got == sizeof seen, seen.ssi_signo == SIGCHLD, seen.ssi_pid == (unsigned)last);
    waitpid(last, NULL, 0);
    sigprocmask(SIG_SETMASK, &old, NULL);

    on(SIG_IGN);
    child(0);
    int nobody = wait(NULL);
    printf("ignored: %d, %s\n", nobody, strerror(errno));
    struct sigaction how;
    sigaction(SIGCHLD, NULL, &how);
    printf("read back: %d\n", how.sa_handler == SIG_IGN);
    on(SIG_DFL);
    printf("default again: interrupted %d times\n", crowd());
    return 0;
}
