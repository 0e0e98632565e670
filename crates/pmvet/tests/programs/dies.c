/* Ends in the way named by its argument. What it wrote before must arrive. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    printf("about to end: %s\n", how);
    fflush(stdout);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "null")) *(volatile int *)(size_t)8 = 1;
    if (!strcmp(how, "jump")) ((void (*)(void))(size_t)0x10)();
    if (!strcmp(how, "divide")) __asm__ volatile("xor %%ecx, %%ecx; mov $1, %%eax; cltd; idiv %%ecx" ::: "eax", "ecx", "edx");
    if (!strcmp(how, "illegal")) __asm__ volatile("ud2");
    if (!strcmp(how, "trap")) __asm__ volatile("int3");
    if (!strcmp(how, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(how, "term")) kill(getpid(), SIGTERM);
    if (!strcmp(how, "pipe")) raise(SIGPIPE);
    if (!strcmp(how, "realtime")) raise(SIGRTMIN + 3);
    if (!strcmp(how, "exit")) exit(200);
    if (!strcmp(how, "_exit")) _exit(255);
    return 9;
}
