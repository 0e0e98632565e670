/* Threads that spin on one test-and-set lock in PM. `make bench` measures the cost of waiting with it.
 *
 *   spin_lock POOL THREADS ROUNDS
 */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_THREADS 64

struct pool {
	_Alignas(64) atomic_int lock;
	_Alignas(64) long counter;
};

static struct pool *pool;
static int rounds;

static void *work(void *unused)
{
	(void)unused;
	for (int i = 0; i < rounds; i++) {
		while (atomic_exchange(&pool->lock, 1))
			_mm_pause();
		pool->counter++;
		_mm_clflush(&pool->counter);
		_mm_sfence();
		atomic_store_explicit(&pool->lock, 0, memory_order_release);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc == 4 ? atoi(argv[2]) : 0;
	if (threads < 1 || threads > MOST_THREADS) {
		fprintf(stderr, "usage: %s POOL THREADS ROUNDS\n", argv[0]);
		return 2;
	}
	rounds = atoi(argv[3]);
	int file = open(argv[1], O_RDWR | O_CREAT, 0644);
	if (file < 0 || ftruncate(file, 1 << 16)) {
		perror(argv[1]);
		return 2;
	}
	pool = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (pool == MAP_FAILED) {
		perror(argv[1]);
		return 2;
	}
	/* A crash may have left it held. */
	atomic_store(&pool->lock, 0);
	pthread_t ids[MOST_THREADS];
	for (int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, NULL))
			return 2;
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
