/* Filters its own system calls: first all are allowed, then one fails with a chosen error, then one traps. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int trapped;

static void on_trap(int n, siginfo_t *info, void *context) {
    (void)n;
    (void)context;
    trapped = info->si_syscall;
}

static int install(long number, unsigned action) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    printf("allow all: %d\n", install(-1, SECCOMP_RET_ALLOW));
    printf("refuse one: %d\n", install(SYS_mkdir, SECCOMP_RET_ERRNO | ENOTTY));
    printf("%d %s\n", mkdir("/tmp", 0700), strerror(errno));
    struct sigaction how = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &how, NULL);
    install(SYS_mknod, SECCOMP_RET_TRAP);
    syscall(SYS_mknod, "/none/x", 0, 0);
    printf("trapped: %d\n", trapped == SYS_mknod);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        install(SYS_sync, SECCOMP_RET_KILL_PROCESS);
        syscall(SYS_sync);
        _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("the child: signal %d\n", WTERMSIG(status));
    return 0;
}
