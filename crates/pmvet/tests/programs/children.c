/* vfork, posix_spawn, fork, fexecve, and what a parent learns about its children. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void say(const char *what, int status) {
    if (WIFSIGNALED(status)) printf("%s: signal %d\n", what, WTERMSIG(status));
    else printf("%s: status %d\n", what, WEXITSTATUS(status));
    fflush(stdout);
}

static int wait_for(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) perror("waitpid");
    return status;
}

int main(void) {
    for (volatile int i = 0; i < 5; i++) {
        volatile int shared = 0;
        pid_t child = vfork();
        if (child == 0) {
            shared = i + 1;
            _exit(i * 10);
        }
        say("vfork and _exit", wait_for(child));
        printf("the child wrote %d\n", shared);
    }
    for (volatile int i = 0; i < 3; i++) {
        fflush(stdout);
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/echo", "echo", "after vfork", (char *)NULL);
            _exit(127);
        }
        say("vfork and exec", wait_for(child));
    }
    pid_t child = vfork();
    if (child == 0) {
        execl("/no/such/program", "none", (char *)NULL);
        _exit(126);
    }
    say("vfork and a failing exec", wait_for(child));

    char *echo[] = {"sh", "-c", "read line; echo \"spawned: $line $X\"; exit 5", NULL};
    char *settings[] = {"X=y", "PATH=/usr/bin:/bin", NULL};
    int ends[2];
    if (pipe(ends)) return 1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    if (posix_spawnp(&child, "sh", &actions, &attributes, echo, settings)) return 2;
    if (write(ends[1], "through a pipe\n", 15) != 15) return 3;
    close(ends[0]);
    close(ends[1]);
    say("posix_spawn", wait_for(child));
    char *none[] = {"none", NULL};
    printf("posix_spawn of nothing: %s\n", strerror(posix_spawn(&child, "/no/such", NULL, NULL, none, environ)));
    fflush(stdout);

    child = fork();
    if (child == 0) {
        int file = open("/bin/echo", O_RDONLY | O_CLOEXEC);
        char *words[] = {"echo", "by descriptor", NULL};
        fexecve(file, words, environ);
        _exit(125);
    }
    say("fexecve", wait_for(child));

    child = fork();
    if (child == 0) {
        char *words[] = {"env", NULL};
        char *empty[] = {NULL};
        execve("/usr/bin/env", words, empty);
        _exit(124);
    }
    say("an empty environment", wait_for(child));

    /* Killed where it waits, so that nothing it did is left half told. */
    char ready;
    if (pipe(ends)) return 6;
    child = fork();
    if (child == 0) {
        if (write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    if (read(ends[0], &ready, 1) != 1) return 7;
    close(ends[0]);
    close(ends[1]);
    kill(child, SIGKILL);
    say("killed child", wait_for(child));

    child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        _exit(3);
    }
    int status;
    waitpid(child, &status, WUNTRACED);
    printf("stopped: %d by %d\n", WIFSTOPPED(status), WSTOPSIG(status));
    kill(child, SIGCONT);
    say("continued", wait_for(child));

    /* A chain of 40 children: each takes a number and passes it on plus one. */
    int from = -1;
    for (int i = 0; i < 40; i++) {
        int to[2];
        if (pipe(to)) return 4;
        fflush(stdout);
        if (fork() == 0) {
            int number = 0;
            if (from >= 0 && read(from, &number, sizeof number) != sizeof number) _exit(1);
            number++;
            _exit(write(to[1], &number, sizeof number) != sizeof number);
        }
        if (from >= 0) close(from);
        close(to[1]);
        from = to[0];
    }
    int number = 0, failed = 0;
    if (read(from, &number, sizeof number) != sizeof number) return 5;
    while (wait(&status) > 0) failed += status != 0;
    printf("a chain of %d children, %d failed\n", number, failed);
    return 0;
}
