/*
 * A key-value table for several threads, with one lock: `T put KEY VALUE`, `T del KEY`, `T hit KEY` (adds one to its value) and
 * `T both KEY VALUE KEY VALUE` (sets two keys that are there). T is the thread that does it, 0 to 9.
 *
 * The program reads all operations first; each thread then does its own, in their order. The thread holds the lock until what
 * it did is durable. A slot is in use as soon as its key is there, which is stored last. Two keys are set by way of a log.
 */
#include "lines.h"
#include "pmvet.h"
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x736472616873ull
#define POOL_SIZE (64u << 10)
#define SLOTS 64
#define OPS 256

struct slot {
	_Alignas(ZOO_LINE) uint64_t key; /* up to eight letters; 0: free */
	_Alignas(ZOO_LINE) uint64_t value;
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t logged; /* entries that count */
	struct {
		uint64_t slot, value;
	} log[2];
	struct slot slots[SLOTS];
};

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char ops[OPS][LINES_LENGTH];
static int nops;
static uint8_t hidden[SLOTS];                     /* for a bug: slots of keys that were deleted, but are in the pool still */
static __thread struct slot *late, *gone[SLOTS];  /* for bugs: what the thread does later */
static __thread int ngone;

static struct slot *find(uint64_t key)
{
	for (int i = 0; i < SLOTS; i++)
		if (root->slots[i].key == key && !hidden[i])
			return &root->slots[i];
	return NULL;
}

static void set_key(struct slot *s, uint64_t key)
{
	zoo_store(&s->key, key); /* BLAME(5) */
	zoo_persist(&s->key, sizeof s->key);
}

static void set_value(struct slot *s, uint64_t value)
{
	zoo_store(&s->value, value);
	zoo_persist(&s->value, sizeof s->value);
}

static const char *insert(uint64_t key, uint64_t value)
{
	struct slot *s = find(0);

	if (!s)
		return "full";
	set_value(s, value);
	if (BUG == 1) { /* BUG(1): the key is made durable when the thread comes to its next operation */
		zoo_store(&s->key, key); /* BLAME(1) */
		late = s;
		return "ok";
	}
	set_key(s, key); /* BLAME(5) */
	return "ok";
}

static const char *put(uint64_t key, uint64_t value)
{
	struct slot *s = find(key);

	if (!s)
		return insert(key, value);
	if (BUG == 5) { /* BUG(5): a second slot has the key, until the first one is freed */
		insert(key, value); /* BLAME(5) */
		set_key(s, 0); /* BLAME(5) */
		return "ok";
	}
	set_value(s, value);
	return "ok";
}

static const char *take_out(uint64_t key)
{
	struct slot *s = find(key);

	if (!s)
		return "none";
	if (BUG == 2) { /* BUG(2): each thread frees its slots when it ends */
		hidden[s - root->slots] = 1; /* BLAME(2) */
		gone[ngone++] = s; /* BLAME(2) */
		return "ok";
	}
	set_key(s, 0);
	return "ok";
}

static const char *hit(uint64_t key)
{
	struct slot *s = find(key);

	if (!s)
		return "none";
	zoo_store(&s->value, s->value + 1); /* BLAME(4) */
	if (BUG == 4) /* BUG(4): the value has a line of its own, which is not flushed */
		zoo_persist(&s->key, sizeof s->key); /* BLAME(4) */
	else
		zoo_persist(&s->value, sizeof s->value);
	return "ok";
}

/* Does what the log says. */
static void apply(void)
{
	for (uint64_t i = 0; i < root->logged && i < 2; i++) {
		struct slot *s = &root->slots[root->log[i].slot % SLOTS];

		zoo_store(&s->value, root->log[i].value);
		zoo_flush(&s->value, sizeof s->value);
	}
	zoo_fence();
	zoo_store(&root->logged, 0);
	zoo_persist(&root->logged, sizeof root->logged);
}

static const char *both(uint64_t one, uint64_t value, uint64_t other, uint64_t other_value)
{
	struct slot *s[2] = { find(one), find(other) };
	uint64_t values[2] = { value, other_value };

	if (!s[0] || !s[1] || s[0] == s[1])
		return "none";
	if (BUG == 3) { /* BUG(3): without the log */
		set_value(s[0], value); /* BLAME(3) */
		set_value(s[1], other_value); /* BLAME(3) */
		return "ok";
	}
	for (int i = 0; i < 2; i++) {
		zoo_store(&root->log[i].slot, (uint64_t)(s[i] - root->slots));
		zoo_store(&root->log[i].value, values[i]);
	}
	zoo_persist(root->log, sizeof root->log);
	zoo_store(&root->logged, 2);
	zoo_persist(&root->logged, sizeof root->logged);
	apply();
	return "ok";
}

static const char *operate(const char *line)
{
	unsigned long v, w;
	char a[9], b[9];

	if (sscanf(line, "put %8s %lu", a, &v) == 2)
		return put(lines_word(a), v);
	if (sscanf(line, "del %8s", a) == 1)
		return take_out(lines_word(a));
	if (sscanf(line, "hit %8s", a) == 1)
		return hit(lines_word(a));
	if (sscanf(line, "both %8s %lu %8s %lu", a, &v, b, &w) == 4)
		return both(lines_word(a), v, lines_word(b), w);
	return "?";
}

static void persist_late(void)
{
	if (late)
		zoo_persist(&late->key, sizeof late->key); /* BLAME(1) */
	late = NULL;
}

static void worker(int id, void *arg)
{
	(void)arg;
	for (int i = 0; i < nops; i++) {
		const char *reply;

		if (ops[i][0] != '0' + id || ops[i][1] != ' ')
			continue;
		PMVET_OP_BEGIN(ops[i]);
		pthread_mutex_lock(&lock);
		persist_late();
		reply = operate(ops[i] + 2);
		pthread_mutex_unlock(&lock);
		PMVET_OP_END(ops[i]);
		printf("%d %s\n", id, reply);
	}
	pthread_mutex_lock(&lock);
	persist_late();
	while (ngone) {
		set_key(gone[--ngone], 0); /* BLAME(2) */
		hidden[gone[ngone] - root->slots] = 0;
	}
	pthread_mutex_unlock(&lock);
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
	if (root->logged)
		apply();
	if (wants_dump) {
		for (int i = 0; i < SLOTS; i++)
			if (root->slots[i].key)
				lines_item("%.8s %lu", (const char *)&root->slots[i].key, root->slots[i].value);
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
