/* What a program can read about itself: it must not see that it runs under anything. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static void show_file(const char *path) {
    char text[65536];
    int file = open(path, O_RDONLY);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text);
    printf("%s (%zd):", path, size);
    for (ssize_t i = 0; i < size; i++) putchar(text[i] ? text[i] : ' ');
    putchar('\n');
    if (file >= 0) close(file);
}

static int object(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    printf("object %s, %d headers\n", name ? name : "", info->dlpi_phnum);
    ++*(int *)data;
    return 0;
}

int main(int argc, char **argv) {
    char path[4096] = "";
    printf("argv:");
    for (int i = 0; i < argc; i++) printf(" [%s]", argv[i]);
    printf("\nnames: %s %s\n", program_invocation_name, program_invocation_short_name);
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
    printf("exe: %s\n", path);
    memset(path, 0, sizeof path);
    char other[64];
    snprintf(other, sizeof other, "/proc/%d/exe", getpid());
    if (readlink(other, path, sizeof path - 1) < 0) return 1;
    printf("exe by number: %s\n", path);
    struct stat by_link, by_name;
    stat("/proc/self/exe", &by_link);
    stat(path, &by_name);
    printf("the same file: %d\n", by_link.st_ino == by_name.st_ino);
    int opened = open("/proc/self/exe", O_RDONLY);
    fstat(opened, &by_link);
    printf("opened, the same file: %d\n", by_link.st_ino == by_name.st_ino);
    close(opened);
    show_file("/proc/self/cmdline");
    show_file("/proc/self/comm");
    memset(path, 0, sizeof path);
    prctl(PR_GET_NAME, path);
    printf("name: %s\n", path);
    prctl(PR_SET_NAME, "renamed");
    show_file("/proc/self/comm");
    printf("execfn: %s\n", (char *)getauxval(AT_EXECFN));
    printf("page size %lu, secure %lu, entry known %d\n", getauxval(AT_PAGESZ), getauxval(AT_SECURE),
           getauxval(AT_ENTRY) != 0 && getauxval(AT_PHDR) != 0);
    for (char **e = environ; *e; e++) printf("environment: %s\n", *e);
    int objects = 0;
    dl_iterate_phdr(object, &objects);
    printf("%d objects\n", objects);

    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder)) count++;
    closedir(folder);
    printf("descriptors open: %d\n", count);
    int next = dup(0);
    printf("the next descriptor: %d\n", next);
    struct rlimit limit;
    for (int which = 0; which < RLIM_NLIMITS; which++) {
        /* DynamoRIO keeps some descriptors for itself and says so here. */
        if (which == RLIMIT_NOFILE) continue;
        getrlimit(which, &limit);
        printf("limit %d: %ld %ld\n", which, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    printf("ignored or blocked signals:");
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    for (int i = 1; i < NSIG; i++) {
        struct sigaction how;
        if (sigaction(i, NULL, &how)) continue;
        if (how.sa_handler != SIG_DFL || sigismember(&blocked, i)) printf(" %d", i);
    }
    printf("\nin its group: %d, in its session: %d\n", getpgrp() == getpgid(getppid()), getsid(0) == getsid(getppid()));
    printf("umask %o\n", umask(0));
    printf("dumpable %d, no new rights %d, subreaper ", prctl(PR_GET_DUMPABLE), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    int subreaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
    printf("%d, dies with parent ", subreaper);
    prctl(PR_GET_PDEATHSIG, &subreaper);
    printf("%d, seccomp %d\n", subreaper, prctl(PR_GET_SECCOMP));
    return 0;
}
