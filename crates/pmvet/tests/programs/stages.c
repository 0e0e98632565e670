/*
 * stages -- several kinds of bugs at a time
 *
 * usage: stages WORKLOAD POOL [recover]
 *
 * `made`: a pool is made in three steps. After the first, recovery says that it is half made; after the second, it dies, since it takes
 * for granted what the third does. `quad`: four lines wait for one fence, and recovery fails if the first two are there and the others
 * are not. `both`: two threads store.
 */

#include <emmintrin.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (1 << 16)
#define LINE(n) pm[(n) * 8]

static volatile uint64_t *pm;

static void persist(volatile uint64_t *at)
{
	_mm_clflush((void *)at);
	_mm_sfence();
}

__attribute__((noinline)) static void begin(void)
{
	LINE(0) = 1;
	persist(&LINE(0));
}

__attribute__((noinline)) static void finish(void)
{
	LINE(1) = 1;
	persist(&LINE(1));
}

__attribute__((noinline)) static void make_root(void)
{
	LINE(2) = 1;
	persist(&LINE(2));
}

static int recover_made(void)
{
	if (LINE(1) && !LINE(2))
		abort();
	return LINE(0) && !LINE(1) ? 3 : 0;
}

/* The order in which a processor writes these lines back is not known: `clflushopt` and `clwb` are not everywhere, a non-temporal store is. */
static void quad(void)
{
	for (int i = 0; i < 4; i++)
		_mm_stream_si64((long long *)&LINE(i), 1);
	_mm_sfence();
}

static void *store(void *line)
{
	*(volatile uint64_t *)line = 1;
	persist(line);
	return NULL;
}

static void both(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, store, (void *)&LINE(1));
	store((void *)&LINE(2));
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	int fd, recovers = argc > 3;

	if (argc < 3 || (fd = open(argv[2], O_RDWR | O_CREAT, 0644)) < 0 || ftruncate(fd, SIZE) != 0)
		return 9;
	pm = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pm == MAP_FAILED)
		return 9;
	if (!strcmp(argv[1], "made")) {
		if (recovers)
			return recover_made();
		begin();
		finish();
		make_root();
	} else if (!strcmp(argv[1], "quad")) {
		if (recovers)
			return LINE(0) && LINE(1) && !LINE(2) && !LINE(3);
		quad();
	} else if (!recovers) {
		both();
	}
	return 0;
}
