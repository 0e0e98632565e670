/* Condition variables: waiting gives the mutex back and takes it again. */
#include "litmus.h"

static char *p;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void *
child(void *unused)
{
	pthread_mutex_lock(&mutex); //~2 acquire L1 exclusive
	STORE(p + 0x40, 2); //~2 store 0x40 8 0200000000000000
	turn = 1;
	pthread_cond_signal(&changed); //~2 cond-signal S1
	pthread_mutex_unlock(&mutex); //~2 release L1
	pthread_cond_broadcast(&changed); //~2 cond-broadcast S1
	return unused;
}

int
main(int argc, char **argv)
{
	pthread_t thread;
	struct timespec past = {1, 0};
	p = pool(argv, "pool");
	MUST(pthread_mutex_lock(&mutex) == 0); //~ acquire L1 exclusive
	MUST(pthread_cond_timedwait(&changed, &mutex, &past) == ETIMEDOUT); //~ cond-wait S1; release L1; acquire L1 exclusive; cond-woken S1
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	MUST(pthread_create(&thread, NULL, child, NULL) == 0); //~ thread-create 2
	while (!turn)
		MUST(pthread_cond_wait(&changed, &mutex) == 0); //~ cond-wait S1; release L1; acquire L1 exclusive; cond-woken S1
	STORE(p, 3); //~ store 0x0 8 0300000000000000
	MUST(pthread_mutex_unlock(&mutex) == 0); //~ release L1
	MUST(pthread_join(thread, NULL) == 0); //~ thread-join 2
	return 0;
}
