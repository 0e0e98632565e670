/* Barriers and semaphores. */
#include "litmus.h"
#include <semaphore.h>

static char *p;
static pthread_barrier_t barrier;
static sem_t full, empty;

static void *
child(void *unused)
{
	STORE(p + 0x40, 2); //~2 store 0x40 8 0200000000000000
	pthread_barrier_wait(&barrier); //~2 barrier-enter *; barrier-leave *
	STORE(p + 0x40, 3); //~2 store 0x40 8 0300000000000000
	sem_post(&full); //~2 sem-post *
	while (sem_wait(&empty) != 0) //~2 sem-acquire *
		;
	STORE(p + 0x40, 5); //~2 store 0x40 8 0500000000000000
	return unused;
}

int
main(int argc, char **argv)
{
	pthread_t thread;
	p = pool(argv, "pool");
	MUST(pthread_barrier_init(&barrier, NULL, 2) == 0);
	MUST(sem_init(&full, 0, 0) == 0 && sem_init(&empty, 0, 0) == 0);
	MUST(sem_trywait(&full) == -1 && errno == EAGAIN);
	MUST(pthread_create(&thread, NULL, child, NULL) == 0); //~ thread-create 2
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	pthread_barrier_wait(&barrier); //~ barrier-enter *; barrier-leave *
	MUST(sem_wait(&full) == 0); //~ sem-acquire *
	STORE(p, 4); //~ store 0x0 8 0400000000000000
	MUST(sem_post(&empty) == 0); //~ sem-post *
	MUST(pthread_join(thread, NULL) == 0); //~ thread-join 2
	MUST(sem_post(&full) == 0); //~ sem-post *
	MUST(sem_trywait(&full) == 0); //~ sem-acquire *
	return 0;
}
