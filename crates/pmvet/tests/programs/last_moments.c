/*
 * Processes that end while their threads go on with things that pmvet records: none of it may get lost on the way.
 *
 *     last_moments
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 12, THREADS = 3, ROUNDS = 5 };

static atomic_int busy;

static void *nothing(void *unused)
{
	return unused;
}

/* Threads that start and end are recorded. */
static void *forever(void *unused)
{
	for (int i = 0;; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
			abort();
		if (i == ROUNDS)
			busy++;
	}
	return unused;
}

static void child(void)
{
	for (int t = 0; t < THREADS; t++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, forever, NULL))
			abort();
	}
	while (busy < THREADS)
		usleep(100);
	exit(0);
}

int main(void)
{
	int failed = 0;
	for (int i = 0; i < PROCESSES; i++) {
		int status = 0;
		pid_t pid = fork();
		if (pid == 0)
			child();
		failed += waitpid(pid, &status, 0) != pid || status != 0;
	}
	printf("%d of %d failed\n", failed, PROCESSES);
	return failed != 0;
}
