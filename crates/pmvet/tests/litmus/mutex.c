/* Mutexes of every kind. */
#include "litmus.h"
#include <time.h>

static char *p;
static pthread_mutex_t robust;

static void *
dies_with_it(void *unused)
{
	pthread_mutex_lock(&robust); //~2 acquire L4 exclusive
	STORE(p + 0x40, 2); //~2 store 0x40 8 0200000000000000
	return unused;
}

int
main(int argc, char **argv)
{
	p = pool(argv, "pool");
	struct timespec past = {1, 0};
	pthread_mutex_t normal = PTHREAD_MUTEX_INITIALIZER;
	MUST(pthread_mutex_lock(&normal) == 0); //~ acquire L1 exclusive
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	MUST(pthread_mutex_trylock(&normal) == EBUSY);
	MUST(pthread_mutex_timedlock(&normal, &past) == ETIMEDOUT);
	MUST(pthread_mutex_unlock(&normal) == 0); //~ release L1
	MUST(pthread_mutex_trylock(&normal) == 0); //~ acquire L1 exclusive
	MUST(pthread_mutex_unlock(&normal) == 0); //~ release L1
	MUST(pthread_mutex_timedlock(&normal, &past) == 0); //~ acquire L1 exclusive
	MUST(pthread_mutex_unlock(&normal) == 0); //~ release L1
	MUST(pthread_mutex_clocklock(&normal, CLOCK_MONOTONIC, &past) == 0); //~ acquire L1 exclusive
	MUST(pthread_mutex_unlock(&normal) == 0); //~ release L1

	pthread_mutexattr_t kind;
	pthread_mutex_t recursive, checking;
	MUST(pthread_mutexattr_init(&kind) == 0);
	MUST(pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE) == 0 && pthread_mutex_init(&recursive, &kind) == 0);
	MUST(pthread_mutex_lock(&recursive) == 0); //~ acquire L2 exclusive
	MUST(pthread_mutex_lock(&recursive) == 0); //~ acquire L2 exclusive
	MUST(pthread_mutex_unlock(&recursive) == 0); //~ release L2
	MUST(pthread_mutex_unlock(&recursive) == 0); //~ release L2

	MUST(pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK) == 0 && pthread_mutex_init(&checking, &kind) == 0);
	MUST(pthread_mutex_lock(&checking) == 0); //~ acquire L3 exclusive
	MUST(pthread_mutex_lock(&checking) == EDEADLK);
	MUST(pthread_mutex_unlock(&checking) == 0); //~ release L3

	pthread_t thread;
	MUST(pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_NORMAL) == 0);
	MUST(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutex_init(&robust, &kind) == 0);
	MUST(pthread_create(&thread, NULL, dies_with_it, NULL) == 0); //~ thread-create 2
	MUST(pthread_join(thread, NULL) == 0); //~ thread-join 2
	MUST(pthread_mutex_lock(&robust) == EOWNERDEAD); //~ acquire L4 exclusive
	MUST(pthread_mutex_consistent(&robust) == 0);
	MUST(pthread_mutex_unlock(&robust) == 0); //~ release L4
	return 0;
}
