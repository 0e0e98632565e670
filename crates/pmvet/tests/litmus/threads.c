/* Threads of the C library, one after the other and detached. */
#include "litmus.h"
#include <semaphore.h>

static char *p;
static sem_t done;

static void *
second(void *unused)
{
	STORE(p + 0x40, 2); //~2 store 0x40 8 0200000000000000
	X("clwb 0x40(%[p]); sfence"); //~2 clwb 0x40; sfence
	return unused;
}

static void *
third(void *unused)
{
	STORE(p + 0x80, 3); //~3 store 0x80 8 0300000000000000
	pthread_exit(unused);
}

static void *
fourth(void *unused)
{
	STORE(p + 0xc0, 4); //~4 store 0xc0 8 0400000000000000
	sem_post(&done); //~4 sem-post S1
	return unused;
}

int
main(int argc, char **argv)
{
	pthread_t thread;
	p = pool(argv, "pool");
	MUST(sem_init(&done, 0, 0) == 0);
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	MUST(pthread_create(&thread, NULL, second, NULL) == 0); //~ thread-create 2
	MUST(pthread_join(thread, NULL) == 0); //~ thread-join 2
	STORE(p, 5); //~ store 0x0 8 0500000000000000
	MUST(pthread_create(&thread, NULL, third, NULL) == 0); //~ thread-create 3
	MUST(pthread_join(thread, NULL) == 0); //~ thread-join 3
	MUST(pthread_join(pthread_self(), NULL) != 0);

	pthread_attr_t detached;
	MUST(pthread_attr_init(&detached) == 0);
	MUST(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) == 0);
	MUST(pthread_create(&thread, &detached, fourth, NULL) == 0); //~ thread-create 4
	MUST(sem_wait(&done) == 0); //~ sem-acquire S1
	STORE(p, 6); //~ store 0x0 8 0600000000000000
	return 0;
}
