/* Leaves its terminal and its parent behind, works, and ends by itself. Its parent ends first, with status 4. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int parent_left[2];
    if (pipe(parent_left)) return 1;
    if (fork() != 0) {
        puts("the parent ends");
        fflush(stdout);
        _exit(4);
    }
    setsid();
    if (fork() != 0) _exit(0);
    close(parent_left[1]);
    char byte;
    /* End of file comes when the others are gone. */
    ssize_t n = read(parent_left[0], &byte, 1);
    if (chdir("/")) return 2;
    umask(0);
    printf("the daemon has seen %zd bytes, and leads its session: %d\n", n, getsid(0) == getpid());
    int status = system("echo from a child of the daemon");
    printf("the daemon ends: %d\n", status);
    return 7;
}
