/* A target with a PM file: maps it, says so, then ends or works until it is stopped, as its argument says. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const char *how = argv[1], *pool = argv[2], *ready = argv[3];
    int file = open(pool, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 1 << 20)) return 3;
    volatile long *pm = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pm == MAP_FAILED) return 4;
    for (long i = 0; i < 1000; i++) pm[i] = i;
    if (!strcmp(how, "unlink") && unlink(pool)) return 5;
    if (!strcmp(how, "shrink") && ftruncate(file, 4096)) return 6;
    if (!strcmp(how, "many")) /* More than any buffer holds. */
        for (long i = 0; i < 2000000; i++) pm[i % 1000] = i * 0x9e3779b97f4a7c15;
    if (!strcmp(how, "family") && fork() == 0) setsid();
    int told = open(ready, O_WRONLY | O_CREAT, 0600);
    if (told < 0 || close(told)) return 7;
    if (!strcmp(how, "endless") || !strcmp(how, "family"))
        for (long i = 0;; i++) pm[i % 1000] = i;
    if (!strcmp(how, "asleep")) pause();
    return 0;
}
