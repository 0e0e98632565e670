/*
 * Programs that stopping a thread may upset. Each ends by itself if nobody is stopped, and does on its pool again what it did.
 *
 *     awkward POOL deadlock|retry|signals
 *
 * deadlock: two threads take two locks in opposite orders. The second one waits for the first to be done, but not for ever: if
 * the first is stopped for long, they lock each other out.
 * retry: threads count by compare-and-swap of a word in PM, and persist it only afterwards.
 * signals: a timer's handler stores to PM whatever its thread is doing, and threads send each other signals.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { LINE = 64, THREADS = 6, ROUNDS = 30, PATIENCE = 20000 };

struct cell {
	_Atomic uint64_t value;
	char pad[LINE - 8];
};

static struct cell *cell;
static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static atomic_int done;
static pthread_t peers[THREADS];

static void persist(const void *at)
{
	__asm__ volatile("clflush (%0)\n\tsfence" : : "r"(at) : "memory");
}

static void set(struct cell *at, uint64_t value)
{
	atomic_store(&at->value, value);
	persist(at);
}

static void *one_way(void *arg)
{
	pthread_mutex_lock(&first);
	set(&cell[0], atomic_load(&cell[0].value) + 1);
	pthread_mutex_lock(&second);
	set(&cell[1], atomic_load(&cell[0].value));
	pthread_mutex_unlock(&second);
	pthread_mutex_unlock(&first);
	atomic_store(&done, 1);
	return arg;
}

static void *other_way(void *arg)
{
	for (int i = 0; i < PATIENCE && !atomic_load(&done); i++)
		sched_yield();
	pthread_mutex_lock(&second);
	set(&cell[2], atomic_load(&cell[0].value));
	pthread_mutex_lock(&first);
	set(&cell[3], atomic_load(&cell[1].value));
	pthread_mutex_unlock(&first);
	pthread_mutex_unlock(&second);
	return arg;
}

static void *retry(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t seen = atomic_load(&cell[0].value);

		while (!atomic_compare_exchange_weak(&cell[0].value, &seen, seen + 1))
			;
		persist(&cell[0]);
		set(&cell[1 + (long)arg], seen + 1);
	}
	return NULL;
}

static void tick(int signal)
{
	(void)signal;
	set(&cell[THREADS], atomic_load(&cell[0].value));
}

static void *signalled(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		atomic_fetch_add(&cell[0].value, 1);
		pthread_kill(peers[((long)arg + 1) % THREADS], SIGUSR1);
		persist(&cell[0]);
	}
	/* Nobody sends a signal to a thread that is gone. */
	atomic_fetch_add(&done, 1);
	while (atomic_load(&done) < THREADS)
		sched_yield();
	return NULL;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "";
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600), threads = THREADS;

	if (fd < 0 || ftruncate(fd, 4096))
		return 2;
	cell = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (cell == MAP_FAILED)
		return 2;
	if (!strcmp(mode, "signals")) {
		struct itimerval timer = { { 0, 500 }, { 0, 500 } };
		struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };

		sigaction(SIGALRM, &action, NULL);
		sigaction(SIGUSR1, &action, NULL);
		setitimer(ITIMER_REAL, &timer, NULL);
	} else if (!strcmp(mode, "deadlock")) {
		threads = 2;
	}
	for (long i = 0; i < THREADS; i++)
		peers[i] = pthread_self();
	for (long i = 0; i < threads; i++) {
		void *(*work)(void *) = !strcmp(mode, "retry") ? retry : !strcmp(mode, "signals") ? signalled : i ? other_way : one_way;
		pthread_t thread;

		if (pthread_create(&thread, NULL, work, (void *)i))
			return 2;
		peers[i] = thread;
	}
	for (long i = 0; i < threads; i++)
		pthread_join(peers[i], NULL);
	return 0;
}
