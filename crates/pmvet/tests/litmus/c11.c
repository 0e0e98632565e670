/* Threads, mutexes and condition variables of C11. */
#include "litmus.h"
#include <threads.h>

static char *p;
static mtx_t mutex;
static cnd_t changed;
static int ready;

static int
child(void *unused)
{
	mtx_lock(&mutex); //~2 acquire L1 exclusive
	ready = 1;
	STORE(p + 0x40, 2); //~2 store 0x40 8 0200000000000000
	cnd_signal(&changed); //~2 cond-signal S1
	mtx_unlock(&mutex); //~2 release L1
	return 0;
}

int
main(int argc, char **argv)
{
	thrd_t thread;
	p = pool(argv, "pool");
	MUST(mtx_init(&mutex, mtx_timed) == thrd_success && cnd_init(&changed) == thrd_success);
	MUST(mtx_lock(&mutex) == thrd_success); //~ acquire L1 exclusive
	MUST(mtx_trylock(&mutex) == thrd_busy);
	MUST(thrd_create(&thread, child, NULL) == thrd_success); //~ thread-create 2
	while (!ready)
		MUST(cnd_wait(&changed, &mutex) == thrd_success); //~ cond-wait S1; release L1; acquire L1 exclusive; cond-woken S1
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	MUST(mtx_unlock(&mutex) == thrd_success); //~ release L1
	MUST(thrd_join(thread, NULL) == thrd_success); //~ thread-join 2
	MUST(mtx_trylock(&mutex) == thrd_success); //~ acquire L1 exclusive
	MUST(mtx_unlock(&mutex) == thrd_success); //~ release L1
	cnd_broadcast(&changed); //~ cond-broadcast S1
	return 0;
}
