/* Four threads (or processes, with "fork") on the same line. */
#include "litmus.h"
#include <sys/wait.h>

#define THREADS 4
#define ROUNDS 20000

static char *p;

static void *
work(void *argument)
{
	uint64_t number = (uintptr_t)argument;
	for (uint64_t i = 0; i < ROUNDS; i++) {
		STORE(p + 0x48, number << 32 | i);
		uint64_t one = 1;
		__asm__ volatile("lock xaddq %0, %1" : "+r"(one), "+m"(*(uint64_t *)(p + 0x40)) : : "memory", "cc");
	}
	return NULL;
}

int
main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	p = pool(argv, "pool");
	if (argc > 3) {
		for (uintptr_t i = 0; i < THREADS; i++)
			if (fork() == 0) {
				work((void *)i);
				_exit(0);
			}
		int status;
		for (int i = 0; i < THREADS; i++)
			MUST(wait(&status) > 0 && status == 0);
		return 0;
	}
	for (uintptr_t i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	return 0;
}
