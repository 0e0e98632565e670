/* Built static, static and movable, and at a fixed address, with much zeroed memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char zeroed[512 << 20];
static char filled[1 << 20] = {1, 2, 3};
static __thread int own = 3;

static void *thread(void *sum) {
    own += 4;
    return (char *)sum + own;
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv) {
    long sum = 0;
    for (size_t i = 0; i < sizeof zeroed; i += 1 << 20) sum += zeroed[i]++;
    for (size_t i = 0; i < sizeof filled; i++) sum += filled[i];
    pthread_t other;
    void *answer;
    pthread_create(&other, NULL, thread, (void *)sum);
    pthread_join(other, &answer);
    printf("%s with %d: %ld, own %d\n", strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0], argc, (long)answer, own);
    int numbers[1000];
    for (int i = 0; i < 1000; i++) numbers[i] = (i * 7919) % 1000;
    qsort(numbers, 1000, sizeof *numbers, compare);
    printf("sorted %d %d %d\n", numbers[0], numbers[500], numbers[999]);
    struct timespec now;
    printf("clock %d\n", clock_gettime(CLOCK_MONOTONIC, &now) == 0 && time(NULL) > 1000000000);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "echo a child; exit 3", (char *)NULL);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status) == 3 ? atoi(argc > 1 ? argv[1] : "0") : 99;
}
