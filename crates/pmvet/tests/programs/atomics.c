/*
 * Words that are changed atomically and are easily taken for something else.
 *
 *     atomics POOL MODE
 *
 * stores       a sequentially consistent store, which the machine makes by an exchange: a race
 * replaces     an exchange whose old value is used: a lock-free change, which is not predicted
 * setter       two races through one function that stores for its callers
 * claims       spin locks, after more words were claimed for good than the client remembers: correct
 * claims-late  the same, made persistent after the lock was given back: a race
 * bits         the same with a bit that is set and found set, which threads try for all the time: correct
 * neighbours   spin locks that share a word of eight bytes, of which threads hold two: correct
 * versions     version locks in PM that are set up by an addition: correct
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 32, STEPS = 500, CLAIMS = 8, NODES = 64, LINE = 64 };

struct line {
	uint64_t word;
	char pad[LINE - 8];
};

struct node {
	struct line version, count;
};

static struct pool {
	struct line name, size, own[THREADS];
	struct node nodes[NODES];
} *pool;

static const char *mode;
static volatile int turn;
static volatile uint64_t sum;
static uint64_t claimed[THREADS][CLAIMS];
static char locks[NODES];
static volatile uint32_t bits[NODES];
static uint32_t pairs[NODES / 8][2];

static void persist(const void *at)
{
	__asm__ volatile("clflush (%0)\n\tsfence" : : "r"(at) : "memory");
}

/* Writer and reader take turns, in a way that leaves no trace: whatever is reported of them is predicted. */
static void wait_for(int whose)
{
	while (turn != whose)
		sched_yield();
}

static void note(long id, uint64_t value)
{
	pool->own[id].word = value;
	persist(&pool->own[id]);
}

/* Each thread comes to all nodes, in an order of its own. */
static int pick(long id, int step)
{
	return (step * (2 * id + 7) + id) % NODES;
}

static __attribute__((noinline)) void store(struct line *at, uint64_t value)
{
	__atomic_store_n(&at->word, value, __ATOMIC_SEQ_CST);
}

static __attribute__((noinline)) uint64_t replace(struct line *at, uint64_t value)
{
	return __atomic_exchange_n(&at->word, value, __ATOMIC_SEQ_CST);
}

static __attribute__((noinline)) void set(struct line *at, uint64_t value)
{
	*(volatile uint64_t *)&at->word = value;
}

static __attribute__((noinline)) uint64_t get(struct line *at)
{
	return *(volatile uint64_t *)&at->word;
}

static __attribute__((noinline)) void put_name(uint64_t value)
{
	set(&pool->name, value);
	persist(&pool->name);
}

static __attribute__((noinline)) void put_size(uint64_t value)
{
	set(&pool->size, value);
	persist(&pool->size);
}

static void *write_in_turn(void *arg)
{
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		wait_for(0);
		if (!strcmp(mode, "setter")) {
			put_name(i);
			put_size(i);
		} else if (!strcmp(mode, "stores")) {
			store(&pool->name, i);
			persist(&pool->name);
			__atomic_store_n(&pool->size.word, i, __ATOMIC_SEQ_CST);
			persist(&pool->size);
		} else {
			sum += replace(&pool->name, i);
			persist(&pool->name);
			if (__atomic_exchange_n(&pool->size.word, i, __ATOMIC_SEQ_CST) == i)
				abort();
			persist(&pool->size);
		}
		turn = 1;
	}
	return arg;
}

static void *read_in_turn(void *arg)
{
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		wait_for(1);
		note(0, get(&pool->name));
		note(1, get(&pool->size));
		turn = 0;
	}
	return arg;
}

static void *claim_and_lock(void *arg)
{
	long id = (long)arg;
	int late = !strcmp(mode, "claims-late");
	for (int i = 0; i < CLAIMS; i++)
		if (__atomic_exchange_n(&claimed[id][i], 1, __ATOMIC_ACQUIRE))
			abort();
	for (int i = 0; i < STEPS; i++) {
		int which = pick(id, i);
		char *lock = &locks[which];
		struct node *node = &pool->nodes[which];
		while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
			sched_yield();
		node->count.word++;
		if (!late)
			persist(&node->count);
		note(id, node->count.word);
		__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
		if (late)
			persist(&node->count);
	}
	return NULL;
}

static int set_bit(volatile uint32_t *word)
{
	char was_set;
	__asm__ volatile("lock btsl $0, %0\n\tsetc %1" : "+m"(*word), "=q"(was_set) : : "memory");
	return was_set;
}

static void *lock_bits(void *arg)
{
	for (int i = 0; i < STEPS; i++) {
		int which = pick((long)arg, i) % (NODES / 8);
		while (set_bit(&bits[which]))
			__builtin_ia32_pause();
		pool->nodes[which].count.word++;
		persist(&pool->nodes[which].count);
		note((long)arg, pool->nodes[which].count.word);
		bits[which] = 0;
	}
	return NULL;
}

static void count_up(long id, struct node *node)
{
	node->count.word++;
	persist(&node->count);
	note(id, node->count.word);
}

static void *lock_neighbours(void *arg)
{
	for (int i = 0; i < STEPS; i++) {
		int which = pick((long)arg, i) % (NODES / 8);
		int locks = 1 + i % 2;
		for (int k = 0; k < locks; k++)
			for (uint32_t unlocked = 0; !__atomic_compare_exchange_n(&pairs[which][k], &unlocked, 1, 0, __ATOMIC_ACQUIRE,
										 __ATOMIC_RELAXED);
			     unlocked = 0)
				sched_yield();
		for (int k = 0; k < locks; k++)
			count_up((long)arg, &pool->nodes[2 * which + k]);
		for (int k = 0; k < locks; k++)
			__atomic_store_n(&pairs[which][k], 0, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void lock_version(struct node *node)
{
	for (;;) {
		uint64_t seen = __atomic_load_n(&node->version.word, __ATOMIC_ACQUIRE);
		if (!(seen & 2) &&
		    __atomic_compare_exchange_n(&node->version.word, &seen, seen + 2, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return;
		sched_yield();
	}
}

static void count_in(struct node *node, long id)
{
	lock_version(node);
	uint64_t count = node->count.word;
	node->count.word = count + 1;
	persist(&node->count);
	note(id, count);
	__atomic_fetch_add(&node->version.word, 2, __ATOMIC_ACQ_REL);
}

static void *lock_versions(void *arg)
{
	for (int i = 0; i < STEPS; i++)
		count_in(&pool->nodes[pick((long)arg, i)], (long)arg);
	return NULL;
}

static void run(void *(*first)(void *), void *(*others)(void *), long threads)
{
	pthread_t all[THREADS];
	for (long i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, i == 0 ? first : others, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
}

int main(int argc, char **argv)
{
	int fd = argc == 3 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
	if (fd < 0 || ftruncate(fd, sizeof(*pool)) != 0)
		return 2;
	pool = mmap(NULL, sizeof(*pool), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool == MAP_FAILED)
		return 2;
	mode = argv[2];
	if (!strncmp(mode, "claims", 6)) {
		run(claim_and_lock, claim_and_lock, THREADS);
	} else if (!strcmp(mode, "bits")) {
		run(lock_bits, lock_bits, THREADS);
	} else if (!strcmp(mode, "neighbours")) {
		run(lock_neighbours, lock_neighbours, THREADS);
	} else if (!strcmp(mode, "versions")) {
		for (int i = 0; i < NODES; i++) {
			pool->nodes[i].version.word = 4;
			__atomic_fetch_add(&pool->nodes[i].version.word, (uint64_t)1 << 62, __ATOMIC_ACQ_REL);
			persist(&pool->nodes[i].version);
			count_in(&pool->nodes[i], 0);
		}
		run(lock_versions, lock_versions, THREADS);
	} else {
		run(write_in_turn, read_in_turn, 2);
	}
	return 0;
}
