/* Timers and signals: nested, queued with values, blocked and pending, on another stack, by descriptor. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t alarms, inner, outer, deepest, values, on_stack;
static char *other_stack;

static void on_alarm(int n) {
    (void)n;
    alarms++;
}

static void on_inner(int n) {
    (void)n;
    inner++;
}

static void on_outer(int n) {
    (void)n;
    int before = inner;
    raise(SIGUSR2);
    if (inner == before + 1) outer++;
}

static void on_value(int n, siginfo_t *info, void *context) {
    (void)n;
    (void)context;
    values = values * 10 + info->si_value.sival_int;
}

static void on_other_stack(int n) {
    char here;
    (void)n;
    on_stack = &here >= other_stack && &here < other_stack + 65536;
}

static void again(int n) {
    deepest++;
    if (deepest < 10) raise(n);
}

static void on(int signal, void (*handler)(int), int flags) {
    struct sigaction how = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &how, NULL);
}

/* Calls that wait for ever, until a signal comes whose handler does not ask for them to be restarted. */
static void interrupted(void) {
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {0, 's', 'i', 'g'}};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), ends[2];
    siginfo_t ended;
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "signals-%d", getpid());
    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 1);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, ends);
    pid_t child = fork();
    if (child == 0)
        for (;;) pause();
    on(SIGALRM, on_alarm, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    printf("accept %s", accept(listener, NULL, NULL) < 0 && errno == EINTR ? "ends" : "goes on");
    printf(", recv %s", recv(ends[0], &ended, 1, 0) < 0 && errno == EINTR ? "ends" : "goes on");
    printf(", waitid %s\n", waitid(P_PID, (id_t)child, &ended, WEXITED) < 0 && errno == EINTR ? "ends" : "goes on");
    setitimer(ITIMER_REAL, &never, NULL);
    kill(child, SIGKILL);
    while (waitid(P_PID, (id_t)child, &ended, WEXITED) < 0 && errno == EINTR)
        ;
}

int main(void) {
    interrupted();
    on(SIGALRM, on_alarm, SA_RESTART);
    struct itimerval often = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &often, NULL);
    volatile double work = 1;
    while (alarms < 50)
        for (int i = 0; i < 1000; i++) work = work * 1.0000001;
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    puts("fifty alarms during work");

    on(SIGUSR1, on_outer, 0);
    on(SIGUSR2, on_inner, 0);
    for (int i = 0; i < 500; i++) raise(SIGUSR1);
    printf("nested: %d %d\n", (int)outer, (int)inner);

    on(SIGHUP, again, SA_NODEFER);
    raise(SIGHUP);
    printf("the same one nested: %d\n", (int)deepest);

    struct sigaction how = {.sa_sigaction = on_value, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &how, NULL);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, &old);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 7});
    printf("blocked, seen %d\n", (int)values);
    sigprocmask(SIG_SETMASK, &old, NULL);
    printf("unblocked: %d\n", (int)values);

    sigset_t none, now;
    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    for (int i = 0; i < 2; i++) {
        int before = inner;
        sigprocmask(SIG_BLOCK, &set, &old);
        raise(SIGUSR2);
        int result = i ? sigsuspend(&none) : ppoll(NULL, 0, NULL, &none);
        int why = errno;
        sigprocmask(SIG_BLOCK, NULL, &now);
        printf("waited for one that was there: %d, %s, %d, %d\n", result, strerror(why), (int)inner - before,
               sigismember(&now, SIGUSR2));
        sigprocmask(SIG_SETMASK, &old, NULL);
    }

    other_stack = malloc(65536);
    stack_t stack = {.ss_sp = other_stack, .ss_size = 65536};
    sigaltstack(&stack, NULL);
    on(SIGWINCH, on_other_stack, SA_ONSTACK);
    raise(SIGWINCH);
    printf("on the other stack: %d\n", (int)on_stack);

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int descriptor = signalfd(-1, &set, 0);
    kill(getpid(), SIGTERM);
    struct signalfd_siginfo info;
    ssize_t got = read(descriptor, &info, sizeof info);
    printf("by descriptor: %d, %u\n", got == sizeof info, info.ssi_signo);

    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1};
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    /* Again and again: one that comes before the wait is not seen by it under DynamoRIO (signals_waited_for). */
    struct itimerspec soon = {{0, 1000000}, {0, 1000000}};
    timer_settime(timer, 0, &soon, NULL);
    siginfo_t from;
    int which = sigwaitinfo(&set, &from);
    timer_delete(timer);
    printf("timer: %d %d\n", which == SIGRTMIN + 1, from.si_code == SI_TIMER);

    on(SIGALRM, on_alarm, 0);
    /* Again and again: the first may come before the read, on a busy machine. */
    often = (struct itimerval){{0, 20000}, {0, 20000}};
    int ends[2];
    if (pipe(ends)) return 1;
    setitimer(ITIMER_REAL, &often, NULL);
    char byte;
    ssize_t n = read(ends[0], &byte, 1);
    int why = errno;
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    printf("read interrupted: %zd %s\n", n, strerror(why));
    signal(SIGUSR1, SIG_IGN);
    raise(SIGUSR1);
    signal(SIGUSR1, SIG_DFL);
    struct sigaction seen;
    sigaction(SIGUSR2, NULL, &seen);
    printf("handler read back: %d\n", seen.sa_handler == on_inner);
    return 0;
}
