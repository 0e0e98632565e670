/* Closes every descriptor it can, opens the same numbers again, moves its output, and goes on. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    /* As an old daemon does: one by one. */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 3; i < (limit.rlim_cur < 70000 ? (int)limit.rlim_cur : 70000); i++) close(i);
    printf("closed one by one; next is %d\n", dup(1));
    close(3);
    printf("close_range: %d\n", (int)syscall(SYS_close_range, 3, ~0u, 0));
    printf("a closed one: %s\n", write(3, "x", 1) < 0 ? strerror(errno) : "works");
    int kept = fcntl(1, F_DUPFD, 200);
    printf("moved to %d\n", kept);
    fflush(stdout);
    close(0);
    close(1);
    close(2);
    int in = open("/dev/null", O_RDONLY), out = dup(kept), err = dup(kept);
    printf("open: %d %d %d\n", in, out, err);
    fflush(stdout);

    syscall(SYS_close_range, 3, 100, 0);

    pid_t child = fork();
    if (child == 0) {
        syscall(SYS_close_range, 3, ~0u, 0);
        execl("/bin/sh", "sh", "-c", "echo a child with few descriptors; exit 6", (char *)NULL);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %d\n", WEXITSTATUS(status));

    int pair[2], poller = epoll_create1(0), event = eventfd(3, 0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct epoll_event wanted = {EPOLLIN, {.u32 = 42}}, got[4];
    epoll_ctl(poller, EPOLL_CTL_ADD, pair[0], &wanted);
    wanted.data.u32 = 43;
    epoll_ctl(poller, EPOLL_CTL_ADD, event, &wanted);
    int ready = epoll_wait(poller, got, 4, 0);
    printf("ready %d: %u\n", ready, got[0].data.u32);
    if (write(pair[1], "hello", 5) != 5) return 1;
    ready = epoll_wait(poller, got, 4, 1000);
    printf("ready %d\n", ready);
    struct pollfd watched = {pair[0], POLLIN, 0};
    ready = poll(&watched, 1, 1000);
    printf("poll %d %x\n", ready, watched.revents);
    return 0;
}
