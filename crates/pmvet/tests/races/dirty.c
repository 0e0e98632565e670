/*
 * Counters that are changed under an undo log, and threads that keep what they have seen of them. With BUG these read without
 * the lock, and so what recovery may take back.
 */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNTERS 4
#define THREADS 4

struct line {
	_Alignas(64) uint64_t value;
};

struct pool {
	struct {
		_Alignas(64) uint64_t valid;
		uint64_t counter, old;
	} undo;
	struct line counter[COUNTERS], seen[THREADS][COUNTERS];
};

static struct pool *pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void persist(const void *at)
{
	_mm_clflush(at);
	_mm_sfence();
}

static void add(unsigned counter)
{
	pthread_mutex_lock(&lock);
	pool->undo.counter = counter;
	pool->undo.old = pool->counter[counter].value;
	persist(&pool->undo);
	pool->undo.valid = 1;
	persist(&pool->undo);
	pool->counter[counter].value++;
	persist(&pool->counter[counter]);
	pool->undo.valid = 0;
	persist(&pool->undo);
	pthread_mutex_unlock(&lock);
}

static void look(unsigned thread, unsigned counter)
{
#ifndef BUG
	pthread_mutex_lock(&lock);
#endif
	pool->seen[thread][counter].value = *(volatile uint64_t *)&pool->counter[counter].value;
#ifndef BUG
	pthread_mutex_unlock(&lock);
#endif
	persist(&pool->seen[thread][counter]);
}

static void *work(void *argument)
{
	unsigned thread = (uintptr_t)argument, state = thread + 1;

	for (int i = 0; i < 60; i++) {
		unsigned counter = (unsigned)rand_r(&state) % COUNTERS;

		if (rand_r(&state) % 2)
			add(counter);
		else
			look(thread, counter);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int fd = argc < 2 ? -1 : open(argv[1], O_RDWR | O_CREAT, 0644);

	if (fd < 0 || ftruncate(fd, sizeof(*pool)) != 0)
		return 2;
	pool = mmap(NULL, sizeof(*pool), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool == MAP_FAILED)
		return 2;
	if (pool->undo.valid) {
		pool->counter[pool->undo.counter].value = pool->undo.old;
		persist(&pool->counter[pool->undo.counter]);
		pool->undo.valid = 0;
		persist(&pool->undo);
	}
	for (unsigned i = 0; i < THREADS * COUNTERS; i++)
		if (pool->seen[i / COUNTERS][i % COUNTERS].value > pool->counter[i % COUNTERS].value) {
			printf("thread %u has seen more of counter %u than there is\n", i / COUNTERS, i % COUNTERS);
			return 1;
		}
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; argc > 2 && i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (unsigned i = 0; argc > 2 && i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
