/* 64 threads with locks, conditions, a barrier, semaphores, thread-local storage, names, robust locks and cancellation. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 64, ROUNDS = 200 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t tokens;
static pthread_rwlock_t book = PTHREAD_RWLOCK_INITIALIZER;
static long total, turns, cleaned;
static __thread long own;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int onces;

static void first(void) { onces++; }
static void drop(void *value) { __atomic_add_fetch(&cleaned, (long)value, __ATOMIC_SEQ_CST); }

static void *worker(void *argument) {
    long me = (long)argument;
    pthread_once(&once, first);
    pthread_setspecific(key, (void *)me);
    char name[16], read_back[16];
    snprintf(name, sizeof name, "worker %ld", me);
    pthread_setname_np(pthread_self(), name);
    pthread_getname_np(pthread_self(), read_back, sizeof read_back);
    if (strcmp(name, read_back)) abort();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) {
        own++;
        pthread_mutex_lock(&lock);
        total++;
        pthread_mutex_unlock(&lock);
        sem_wait(&tokens);
        pthread_rwlock_rdlock(&book);
        pthread_rwlock_unlock(&book);
        sem_post(&tokens);
    }
    pthread_mutex_lock(&lock);
    while (turns != me) pthread_cond_wait(&turn, &lock);
    turns++;
    pthread_cond_broadcast(&turn);
    pthread_mutex_unlock(&lock);
    return (void *)own;
}

static void note(void *flag) { *(int *)flag += 1; }

static void *endless(void *flag) {
    pthread_cleanup_push(note, flag);
    sem_post(&tokens);
    for (;;) pause();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *spinner(void *flag) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_cleanup_push(note, flag);
    sem_post(&tokens);
    for (volatile long i = 0;; i++) {}
    pthread_cleanup_pop(0);
    return NULL;
}

static void *forker(void *unused) {
    (void)unused;
    pid_t child = fork();
    if (child == 0) _exit(own == 0 ? 33 : 1);
    int status;
    waitpid(child, &status, 0);
    return (void *)(size_t)WEXITSTATUS(status);
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_key_create(&key, drop);
    pthread_barrier_init(&barrier, NULL, THREADS);
    sem_init(&tokens, 0, 3);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    long sum = 0;
    for (int i = 0; i < THREADS; i++) {
        void *answer;
        pthread_join(threads[i], &answer);
        sum += (long)answer;
    }
    printf("total %ld, own %ld, turns %ld, cleaned %ld, once %d\n", total, sum, turns, cleaned, onces);

    int cancelled = 0;
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        void *answer;
        for (int left = 0; sem_getvalue(&tokens, &left), left > 0;) sem_wait(&tokens);
        pthread_create(&thread, NULL, i % 2 ? endless : spinner, &cancelled);
        sem_wait(&tokens);
        pthread_cancel(thread);
        pthread_join(thread, &answer);
        if (answer != PTHREAD_CANCELED) puts("not cancelled");
    }
    printf("cancelled %d\n", cancelled);

    pthread_t helpers[8];
    int good = 0;
    for (int i = 0; i < 8; i++) pthread_create(&helpers[i], NULL, forker, NULL);
    for (int i = 0; i < 8; i++) {
        void *answer;
        pthread_join(helpers[i], &answer);
        good += (size_t)answer == 33;
    }
    printf("forked by threads: %d\n", good);

    pthread_mutex_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(shared, &kind);
    if (fork() == 0) {
        pthread_mutex_lock(shared);
        _exit(0);
    }
    wait(NULL);
    int how = pthread_mutex_lock(shared);
    printf("the owner died: %d, ", how == EOWNERDEAD);
    pthread_mutex_consistent(shared);
    pthread_mutex_unlock(shared);
    printf("consistent again: %d\n", pthread_mutex_lock(shared) == 0);

    /* The first thread ends before the process does. */
    fflush(stdout);
    pthread_t last;
    pthread_create(&last, NULL, forker, NULL);
    pthread_detach(last);
    pthread_exit(NULL);
}
