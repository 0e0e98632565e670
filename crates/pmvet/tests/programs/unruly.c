/*
 * unruly -- keeps two numbers in PM, and does not end when it should
 *
 * usage: unruly work POOL N       counts to N, with two threads
 *        unruly MODE POOL         recovers: does as MODE says unless the numbers agree
 *        unruly now-MODE POOL     counts a little, then does as MODE says
 *
 * MODE: hang, spin (in four threads), fork (for ever), ignore (spins, and ignores what asks it to end), or calm (fails).
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE 64

struct pool {
	volatile uint64_t begun;
	char room1[LINE - 8];
	volatile uint64_t done;
	char room2[LINE - 8];
	volatile uint64_t copy;
};

static struct pool *pool;
static uint64_t rounds;

static void persist(volatile void *p)
{
	__asm__ volatile("clflush (%0); sfence" : : "r"(p) : "memory");
}

static void *writer(void *unused)
{
	for (uint64_t i = 1; i <= rounds; i++) {
		pool->begun = i;
		persist(&pool->begun);
		pool->done = i;
		persist(&pool->done);
	}
	return unused;
}

static void *reader(void *unused)
{
	uint64_t seen;

	do {
		seen = pool->begun;
		pool->copy = seen;
		persist(&pool->copy);
	} while (seen < rounds);
	return unused;
}

static void *spin(void *unused)
{
	for (;;)
		;
	return unused;
}

/* A few families in which every child has a child of its own and dies. */
static void fork_for_ever(void)
{
	for (int family = 0; family < 4; family++) {
		if (fork() == 0)
			for (;;)
				if (fork() > 0)
					_exit(0);
	}
	for (;;)
		if (waitpid(-1, NULL, 0) < 0)
			usleep(1000);
}

static int misbehave(const char *mode)
{
	pthread_t thread;

	if (strcmp(mode, "calm") == 0)
		return 1;
	if (strcmp(mode, "ignore") == 0) {
		for (int number = 1; number < NSIG; number++)
			signal(number, SIG_IGN);
		spin(NULL);
	}
	if (strcmp(mode, "spin") == 0) {
		for (int i = 0; i < 3; i++)
			pthread_create(&thread, NULL, spin, NULL);
		spin(NULL);
	}
	if (strcmp(mode, "fork") == 0)
		fork_for_ever();
	for (;;)
		pause();
}

static void count(uint64_t to)
{
	pthread_t threads[2];

	rounds = to;
	pthread_create(&threads[0], NULL, writer, NULL);
	pthread_create(&threads[1], NULL, reader, NULL);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
}

int main(int argc, char **argv)
{
	int fd;

	if (argc < 3 || (fd = open(argv[2], O_RDWR | O_CREAT, 0644)) < 0 || ftruncate(fd, 4096) < 0)
		return 2;
	pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool == MAP_FAILED)
		return 2;
	if (strcmp(argv[1], "work") == 0) {
		count(argc > 3 ? strtoull(argv[3], NULL, 10) : 10);
		return 0;
	}
	if (strncmp(argv[1], "now-", 4) == 0) {
		count(10);
		return misbehave(argv[1] + 4);
	}
	return pool->begun == pool->done && pool->copy <= pool->begun ? 0 : misbehave(argv[1]);
}
