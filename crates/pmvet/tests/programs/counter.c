/* A server on a socket in the file system, which counts requests in PM, twice; and its client.
 *
 *   counter serve POOL SOCKET    until SIGTERM; writes its number to SOCKET.pid; ends with 1 at once if the two counts differ
 *   counter ask SOCKET N         N requests; keeps a log in SOCKET.log
 */
#include <emmintrin.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct counts {
    uint64_t first, unused[7], second;
};

/* It comes when nobody asks any more. */
static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void persist(void *at) {
    _mm_clflush(at);
    _mm_sfence();
}

static int end_of(const char *path, int (*use)(int, const struct sockaddr *, socklen_t)) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (fd < 0 || use(fd, (struct sockaddr *)&address, sizeof address)) {
        perror(path);
        exit(3);
    }
    return fd;
}

static FILE *beside(const char *path, const char *ending) {
    char name[256];
    snprintf(name, sizeof name, "%s%s", path, ending);
    FILE *file = fopen(name, "a");
    if (!file) {
        perror(name);
        exit(3);
    }
    return file;
}

static int serve(const char *pool, const char *path) {
    int fd = open(pool, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, 4096)) return 3;
    struct counts *pm = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pm == MAP_FAILED) return 3;
    if (pm->first != pm->second) return 1;
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    unlink(path);
    FILE *pid = beside(path, ".pid");
    fprintf(pid, "%d\n", getpid());
    fclose(pid);
    int listener = end_of(path, bind);
    if (listen(listener, 8)) return 3;
    for (;;) {
        char byte;
        int connection = accept(listener, NULL, NULL);
        if (connection < 0) continue;
        while (read(connection, &byte, 1) == 1) {
            pm->first++;
            persist(&pm->first);
            pm->second++;
            persist(&pm->second);
            if (write(connection, "+", 1) != 1) break;
        }
        close(connection);
    }
}

static int ask(const char *path, int n) {
    int fd = end_of(path, connect);
    FILE *log = beside(path, ".log");
    for (char byte = '?'; n > 0; n--) {
        if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) return 4;
        fprintf(log, "%c\n", byte);
    }
    fclose(log);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "serve")) return serve(argv[2], argv[3]);
    if (argc == 4 && !strcmp(argv[1], "ask")) return ask(argv[2], atoi(argv[3]));
    return 2;
}
