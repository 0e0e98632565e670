/*
 * A key-value table for several threads that moves between two halves of its pool: `T put KEY VALUE` and `T move`. T is the thread
 * that does it, 0 to 9.
 *
 * The program reads all operations first; each thread then does its own, in their order. One lock keeps them apart. A move copies
 * all slots to the other half, makes that half durable, and then makes it the one that counts.
 */
#include "lines.h"
#include "pmvet.h"
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x78656e6e61ull
#define POOL_SIZE (64u << 10)
#define SLOTS 64
#define OPS 256

struct slot {
	_Alignas(ZOO_LINE) uint64_t key; /* up to eight letters; 0: free */
	uint64_t value;
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t half; /* the one that counts */
	struct slot slots[2][SLOTS];
};

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char ops[OPS][LINES_LENGTH];
static int nops;

static void put(uint64_t key, uint64_t value)
{
	struct slot *slots = root->slots[root->half & 1], *s = NULL; /* BLAME(1) */

	for (int i = 0; i < SLOTS && !s; i++)
		if (slots[i].key == key || !slots[i].key)
			s = &slots[i];
	if (!s)
		return;
	zoo_store(&s->value, value);
	zoo_persist(&s->value, sizeof s->value);
	if (s->key == key)
		return;
	zoo_store(&s->key, key);
	zoo_persist(&s->key, sizeof s->key);
}

static void move(void)
{
	uint64_t from = root->half & 1;
	struct slot *to = root->slots[!from];

	for (int i = 0; i < SLOTS && root->slots[from][i].key; i++) {
		zoo_store(&to[i].value, root->slots[from][i].value);
		zoo_store(&to[i].key, root->slots[from][i].key);
		zoo_flush(&to[i], sizeof to[i]);
	}
	zoo_fence();
	zoo_store(&root->half, !from); /* BLAME(1) */
	if (BUG == 1) /* BUG(1): the lock is free, and others use the new half, before it is sure to count */
		pthread_mutex_unlock(&lock);
	zoo_persist(&root->half, sizeof root->half); /* BLAME(1) */
	if (BUG != 1)
		pthread_mutex_unlock(&lock);
}

static void operate(const char *line)
{
	unsigned long v;
	char key[9];

	pthread_mutex_lock(&lock);
	if (!strcmp(line, "move")) {
		move();
		return;
	}
	if (sscanf(line, "put %8s %lu", key, &v) == 2)
		put(lines_word(key), v);
	pthread_mutex_unlock(&lock);
}

static void worker(int id, void *arg)
{
	(void)arg;
	for (int i = 0; i < nops; i++) {
		if (ops[i][0] != '0' + id || ops[i][1] != ' ')
			continue;
		PMVET_OP_BEGIN(ops[i]);
		operate(ops[i] + 2);
		PMVET_OP_END(ops[i]);
	}
}

int main(int argc, char **argv)
{
	int wants_dump = lines_want_dump(argc, argv), threads = 1, fresh;
	char *line;

	root = zoo_map(argv[1], POOL_SIZE, &fresh);
	if (root->magic != MAGIC) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
	if (wants_dump) {
		struct slot *slots = root->slots[root->half & 1];

		for (int i = 0; i < SLOTS; i++)
			if (slots[i].key)
				lines_item("%.8s %lu", (const char *)&slots[i].key, slots[i].value);
		lines_print();
		return 0;
	}
	while (nops < OPS && (line = lines_next())) {
		strcpy(ops[nops++], line);
		if (line[0] >= '0' && line[0] <= '9' && line[0] - '0' >= threads)
			threads = line[0] - '0' + 1;
	}
	zoo_threads(threads, worker, NULL);
	return 0;
}
