/*
 * Threads in all the ways that confuse an analysis of locks: many of them, short ones whose handles are used again,
 * detached ones, locks within locks, recursive locks, locks that one thread takes and another gives back, spin locks in
 * volatile memory, and one cache line that everybody reads.
 *
 *     crowd POOL MODE [late]
 *
 * With "late" a value is made persistent only after the lock around it was given back.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 64, LINE = 64 };

struct pool {
	uint64_t count;
	char pad[LINE - 8];
	uint64_t table[LINE / 8];
	struct {
		uint64_t seen;
		char pad[LINE - 8];
	} own[THREADS];
};

static struct pool *pool;
static int late;
static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static atomic_flag flag = ATOMIC_FLAG_INIT;
static sem_t stored, done;

static void persist(const void *at)
{
	__asm__ volatile("clflush (%0)\n\tsfence" : : "r"(at) : "memory");
}

/* A thread's own record of what it has seen: what a crash must not keep while it loses the count. */
static void note(long id)
{
	pool->own[id].seen = pool->count;
	persist(&pool->own[id]);
}

static void *with_mutex(void *arg)
{
	for (int i = 0; i < 8; i++) {
		pthread_mutex_lock(&outer);
		pool->count++;
		if (!late)
			persist(pool);
		pthread_mutex_unlock(&outer);
		if (late)
			persist(pool);
		pthread_mutex_lock(&outer);
		note((long)arg);
		pthread_mutex_unlock(&outer);
	}
	return NULL;
}

static void *with_nested(void *arg)
{
	for (int i = 0; i < 8; i++) {
		pthread_mutex_lock(&outer);
		pthread_mutex_lock(&inner);
		pthread_mutex_lock(&inner);
		pool->count++;
		pthread_mutex_unlock(&outer);
		pthread_mutex_unlock(&inner);
		/* Still held once. */
		if (!late)
			persist(pool);
		pthread_mutex_unlock(&inner);
		if (late)
			persist(pool);
		pthread_mutex_lock(&inner);
		note((long)arg);
		pthread_mutex_unlock(&inner);
	}
	return NULL;
}

static void *with_spin_lock(void *arg)
{
	for (int i = 0; i < 8; i++) {
		while (atomic_flag_test_and_set_explicit(&flag, memory_order_acquire))
			sched_yield();
		pool->count++;
		if (!late)
			persist(pool);
		atomic_flag_clear_explicit(&flag, memory_order_release);
		if (late)
			persist(pool);
		while (atomic_flag_test_and_set_explicit(&flag, memory_order_acquire))
			sched_yield();
		note((long)arg);
		atomic_flag_clear_explicit(&flag, memory_order_release);
	}
	return NULL;
}

/* Takes the lock and stores; another thread makes it persistent and gives the lock back. */
static void *hands_over(void *arg)
{
	for (int i = 0; i < 8; i++) {
		pthread_mutex_lock(&outer);
		note((long)arg);
		pool->count++;
		sem_post(&stored);
		if (late) {
			sem_wait(&done);
			persist(pool);
		}
	}
	return NULL;
}

static void *takes_over(void *arg)
{
	for (int i = 0; i < 16; i++) {
		sem_wait(&stored);
		if (!late)
			persist(pool);
		pthread_mutex_unlock(&outer);
		sem_post(&done);
	}
	return arg;
}

static void *ends_alone(void *arg)
{
	with_mutex(arg);
	sem_post(&done);
	return NULL;
}

static void *reads(void *arg)
{
	uint64_t sum = 0;
	for (long i = 0; i < 2500000; i++)
		sum += *(volatile uint64_t *)&pool->table[i % 8];
	pool->own[(long)arg].seen = sum;
	persist(&pool->own[(long)arg]);
	return with_mutex(arg);
}

static void crowd(void *(*work)(void *), long threads)
{
	pthread_t thread[THREADS];
	for (long i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, work, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
	int fd = argc < 3 ? -1 : open(argv[1], O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *pool))
		return 2;
	pool = mmap(NULL, sizeof *pool, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool == MAP_FAILED)
		return 2;
	const char *mode = argv[2];
	late = argc > 3;
	sem_init(&stored, 0, 0);
	sem_init(&done, 0, 0);
	pthread_t thread[4];
	if (!strcmp(mode, "crowd")) {
		crowd(with_mutex, THREADS);
	} else if (!strcmp(mode, "short")) {
		for (int round = 0; round < 50; round++)
			crowd(with_mutex, 4);
	} else if (!strcmp(mode, "nested")) {
		crowd(with_nested, 8);
	} else if (!strcmp(mode, "spin")) {
		crowd(with_spin_lock, 8);
	} else if (!strcmp(mode, "handover")) {
		/* Else a thread that is done before the other starts would seem to initialise it. */
		(void)*(volatile uint64_t *)&pool->count;
		for (long i = 0; i < 2; i++)
			pthread_create(&thread[i], NULL, hands_over, (void *)i);
		pthread_create(&thread[2], NULL, takes_over, NULL);
		for (int i = 0; i < 3; i++)
			pthread_join(thread[i], NULL);
	} else if (!strcmp(mode, "detached")) {
		for (long i = 0; i < 8; i++) {
			pthread_create(&thread[0], NULL, ends_alone, (void *)i);
			pthread_detach(thread[0]);
		}
		for (int i = 0; i < 8; i++)
			sem_wait(&done);
		note(0);
	} else if (!strcmp(mode, "hot")) {
		crowd(reads, 4);
	} else {
		return 2;
	}
	printf("%lu\n", (unsigned long)pool->count);
	return 0;
}
