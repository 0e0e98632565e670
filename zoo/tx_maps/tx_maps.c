/*
 * Five maps over a small undo log, and one that does without: counterparts of the bugs of PMFuzz's section 5.4.
 *
 * Everything is a line of eight words. A transaction saves lines before it changes them, flushes what it changed
 * and made, and empties the log. The sixth map links its nodes in by single stores and marks its counter as not
 * to be trusted in the meantime.
 */
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x7370616d7874u
#define MAPS 5
#define SAVED 30      /* lines that a transaction may change */
#define LINES 16384
#define HEADS 6
#define KEYS 12
#define FULL 2        /* a bucket of the second map that is longer is split */

struct line {
	uint64_t word[8];
};

/* A map: the first nodes of its buckets, and how many nodes there are. */
enum { COUNT = HEADS };
/* A node. */
enum { KEY, VALUE, NEXT, CHECK };
/* The root: the maps, and the line that is given away next. */
enum { NEW = MAPS };
/* The map without transactions. */
enum { HEAD, LENGTH, DIRTY };

struct pool {
	uint64_t magic;
	uint64_t pad[7];
	struct line slab[2];     /* about the lines: how many, how large */
	struct line root;
	struct line plain;
	struct {
		uint64_t saved;
		uint64_t pad[7];
		struct line old[SAVED]; /* seven words, and which line they are of */
	} log;
	struct line lines[LINES];
};

static struct zoo_opts opts;
static struct pool *pool;
static int share[5] = { 60, 15, 10, 10, 5 };

static struct line *at(uint64_t number)
{
	if (number == 0)
		return NULL;
	return number > LINES ? &pool->root : &pool->lines[number - 1];
}

static uint64_t number_of(struct line *l)
{
	return l == &pool->root ? LINES + 1 : (uint64_t)(l - pool->lines) + 1;
}

/* What the transaction under way has to flush. */
static struct {
	struct line *line[2 * SAVED];
	int n;
} changed;

static void tx_add(struct line *l)
{
	struct line *old = &pool->log.old[pool->log.saved];

	if (pool->log.saved == SAVED)
		zoo_fail("tx_maps: a transaction is too large");
	zoo_copy(old, l, 56);
	zoo_store(&old->word[7], number_of(l));
	zoo_persist(old, sizeof(*old));
	zoo_store(&pool->log.saved, pool->log.saved + 1);
	zoo_persist(&pool->log.saved, 8);
	changed.line[changed.n++] = l;
}

/* Lines that nothing refers to yet need no copy. The root must have been saved. */
static struct line *tx_new(uint64_t n)
{
	uint64_t number = pool->root.word[NEW];

	for (uint64_t i = 0; i < n; i++)
		changed.line[changed.n++] = at(number + i);
	zoo_store(&pool->root.word[NEW], number + n);
	return at(number);
}

static void tx_commit(void)
{
	for (int i = 0; i < changed.n; i++)
		zoo_flush(changed.line[i], sizeof(struct line));
	zoo_fence();
	changed.n = 0;
	if (pool->log.saved) {
		zoo_store(&pool->log.saved, 0);
		zoo_persist(&pool->log.saved, 8);
	}
}

static void roll_back(void)
{
	if (pool->log.saved == 0)
		return;
	for (uint64_t i = pool->log.saved; i-- > 0;) {
		struct line *old = &pool->log.old[i];

		zoo_copy(at(old->word[7]), old, 56);
		zoo_flush(at(old->word[7]), sizeof(struct line));
	}
	zoo_fence();
	zoo_store(&pool->log.saved, 0);
	zoo_persist(&pool->log.saved, 8);
}

static int is_full(void)
{
	return pool->root.word[NEW] + 8 > LINES;
}

static void make_map(int kind)
{
	tx_add(&pool->root);
	struct line *map = tx_new(1);

	for (int i = 0; i < 8; i++)
		zoo_store(&map->word[i], 0);
	zoo_store(&pool->root.word[kind], number_of(map));
	tx_commit();
}

static void create(void)
{
	for (int i = 0; i < 2; i++)
		zoo_store(&pool->slab[i].word[0], i ? sizeof(struct line) : LINES);
	if (BUG == 7)
		zoo_persist(&pool->slab[0], 8); /* BUG(7): flushed again with the whole slab below */
	zoo_persist(pool->slab, sizeof(pool->slab)); /* BLAME(7) */
	zoo_store(&pool->root.word[NEW], 1);
	zoo_persist(&pool->root, sizeof(pool->root));
	zoo_store(&pool->magic, MAGIC); /* BLAME(1, 2, 3, 4, 5) */
	zoo_persist(&pool->magic, 8);
}

static uint64_t *bucket(struct line *map, int kind, uint64_t key)
{
	static const uint64_t spread[MAPS] = { 1, 1, 1, 3, 5 };

	return &map->word[key * spread[kind] / 4 % HEADS];
}

static void fill(struct line *node, uint64_t key, uint64_t next)
{
	zoo_store(&node->word[KEY], key);
	zoo_store(&node->word[VALUE], zoo_mix(key));
	zoo_store(&node->word[NEXT], next);
	zoo_store(&node->word[CHECK], key ^ next ^ MAGIC);
}

static void relink(struct line *node, uint64_t next)
{
	zoo_store(&node->word[NEXT], next);
	zoo_store(&node->word[CHECK], node->word[KEY] ^ next ^ MAGIC);
}

/* The node with the key, and the one before it in its bucket. */
static struct line *find(struct line *map, int kind, uint64_t key, struct line **before)
{
	*before = NULL;
	for (struct line *n = at(*bucket(map, kind, key)); n; *before = n, n = at(n->word[NEXT]))
		if (n->word[KEY] == key)
			return n;
	return NULL;
}

/* Turns the first two nodes of a bucket that has grown long around. Returns what is first then, for the caller to store. */
static uint64_t split(struct line *map, int kind, uint64_t key)
{
	struct line *first = at(*bucket(map, kind, key)), *second = at(first->word[NEXT]);

	tx_add(map);
	tx_add(first);
	tx_add(second);
	relink(first, second->word[NEXT]);
	relink(second, number_of(first));
	return number_of(second);
}

static int is_long(struct line *map, int kind, uint64_t key)
{
	int length = 0;

	for (struct line *n = at(*bucket(map, kind, key)); n; n = at(n->word[NEXT]))
		length++;
	return length > FULL;
}

static void insert(int kind, uint64_t key)
{
	struct line *map = at(pool->root.word[kind]), *before;

	if (find(map, kind, key, &before) || is_full())
		return;
	uint64_t *head = bucket(map, kind, key), first = *head;

	tx_add(&pool->root);
	if (kind == 1 && is_long(map, kind, key)) {
		first = split(map, kind, key);
		if (BUG == 12)
			tx_add(map); /* BUG(12): the split has saved it */
	} else {
		tx_add(map);
	}
	struct line *node = tx_new(1);

	fill(node, key, first);
	if (BUG == 8 && kind == 0)
		tx_add(node); /* BUG(8): the node has just been made */
	if (BUG == 9 && kind == 2 && map->word[COUNT] == 0)
		tx_add(node); /* BUG(9): the first node of a tree is saved, though it has just been made */
	zoo_store(head, number_of(node));
	zoo_store(&map->word[COUNT], map->word[COUNT] + 1);
	tx_commit();
}

static void remove_key(int kind, uint64_t key)
{
	struct line *map = at(pool->root.word[kind]), *before, *node = find(map, kind, key, &before);

	if (!node)
		return;
	tx_add(map);
	if (before) {
		tx_add(before);
		relink(before, node->word[NEXT]);
	} else {
		zoo_store(bucket(map, kind, key), node->word[NEXT]);
	}
	zoo_store(&map->word[COUNT], map->word[COUNT] - 1);
	tx_commit();
}

/* Puts a new map with one node in the place of an old one. */
static void replace(int kind, uint64_t key)
{
	if (is_full())
		return;
	tx_add(&pool->root);
	struct line *map = tx_new(2), *node = map + 1;

	for (int i = 0; i < 8; i++)
		zoo_store(&map->word[i], &map->word[i] == bucket(map, kind, key) ? number_of(node) : i == COUNT);
	if (BUG == 10 && kind == 2)
		tx_add(map); /* BUG(10): the map has just been made */
	fill(node, key, 0);
	zoo_store(&pool->root.word[kind], number_of(map));
	tx_commit();
}

/* Turns a node and its successor around. */
static void rotate(int kind, uint64_t key)
{
	struct line *map = at(pool->root.word[kind]), *before, *node = find(map, kind, key, &before);
	struct line *next = node ? at(node->word[NEXT]) : NULL;

	if (!next)
		return;
	tx_add(node);
	tx_add(next);
	if (before)
		tx_add(before);
	else
		tx_add(map);
	if (BUG == 11 && kind == 2 && before)
		tx_add(node); /* BUG(11): behind the first node of a bucket a node is saved twice */
	relink(node, next->word[NEXT]);
	relink(next, number_of(node));
	if (before)
		relink(before, number_of(next));
	else
		zoo_store(bucket(map, kind, key), number_of(next));
	tx_commit();
}

/* The map without transactions: a node counts once it is linked in. */
static void insert_plain(uint64_t key)
{
	if (is_full())
		return;
	tx_add(&pool->root);
	struct line *node = tx_new(1);

	fill(node, key, pool->plain.word[HEAD]);
	tx_commit();
	zoo_store(&pool->plain.word[DIRTY], 1);
	zoo_persist(&pool->plain, 8 * 3);
	zoo_store(&pool->plain.word[HEAD], number_of(node)); /* BLAME(6) */
	zoo_persist(&pool->plain, 8 * 3);
	zoo_store(&pool->plain.word[LENGTH], pool->plain.word[LENGTH] + 1);
	zoo_persist(&pool->plain, 8 * 3);
	zoo_store(&pool->plain.word[DIRTY], 0);
	zoo_persist(&pool->plain, 8 * 3);
}

static uint64_t length_of(uint64_t first)
{
	uint64_t n = 0;

	for (struct line *l = at(first); l; l = at(l->word[NEXT]), n++) {
		if (l->word[CHECK] != (l->word[KEY] ^ l->word[NEXT] ^ MAGIC) || l->word[VALUE] != zoo_mix(l->word[KEY]))
			zoo_fail("tx_maps: a node is broken");
		if (n > LINES)
			zoo_fail("tx_maps: a bucket does not end");
	}
	return n;
}

static void recover(void)
{
	roll_back();
	if (pool->plain.word[DIRTY] && BUG != 6) { /* BUG(6): nobody counts again */
		uint64_t n = length_of(pool->plain.word[HEAD]);

		if (n != pool->plain.word[LENGTH]) {
			zoo_store(&pool->plain.word[LENGTH], n);
			zoo_persist(&pool->plain, 8 * 3);
		}
		zoo_store(&pool->plain.word[DIRTY], 0);
		zoo_persist(&pool->plain, 8 * 3);
	}
}

static uint64_t verify(void)
{
	uint64_t all = 0;

	for (int kind = 0; kind < MAPS; kind++) {
		struct line *map = at(pool->root.word[kind]);
		uint64_t n = 0;

		for (int i = 0; i < HEADS; i++)
			n += length_of(map->word[i]);
		if (n != map->word[COUNT])
			zoo_fail("tx_maps: map %d counts %lu nodes and has %lu", kind, map->word[COUNT], n);
		all += n;
	}
	if (length_of(pool->plain.word[HEAD]) != pool->plain.word[LENGTH])
		zoo_fail("tx_maps: the last map counts %lu nodes", pool->plain.word[LENGTH]);
	return all + pool->plain.word[LENGTH];
}

/* There is one transaction at a time, and one undo log. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void worker(int id, void *arg)
{
	uint64_t rng = opts.seed ^ zoo_mix((uint64_t)id + 1);

	(void)arg;
	for (long i = zoo_share(opts.ops, opts.threads, id); i > 0; i--) {
		int op = zoo_pick(&rng, share, 5);
		uint64_t which = zoo_rand(&rng), key = which / 8 % KEYS + 1;
		int kind = (int)(which % 8) % MAPS;

		pthread_mutex_lock(&one_at_a_time);
		if (op == 0)
			insert(kind, key);
		else if (op == 1)
			remove_key(kind, key);
		else if (op == 2)
			rotate(kind, key);
		else if (op == 3)
			insert_plain(key);
		else
			replace(kind, key);
		pthread_mutex_unlock(&one_at_a_time);
	}
}

int main(int argc, char **argv)
{
	int fresh;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 5);
	pool = zoo_map(opts.pool, sizeof(struct pool), &fresh);
	fresh = fresh || pool->magic == 0;
	if (fresh)
		create();
	else if (pool->magic != MAGIC)
		zoo_fail("tx_maps: not a pool of this program");
	recover();
	for (int kind = 0; kind < MAPS; kind++) {
		if (pool->root.word[kind])
			continue;
		if (BUG == 1 && kind == 0 && !fresh)
			continue; /* BUG(1): a map whose making was undone is never made again */
		if (BUG == 2 && kind == 1 && !fresh)
			continue; /* BUG(2): as bug 1, the second map */
		if (BUG == 3 && kind == 2 && !fresh)
			continue; /* BUG(3): as bug 1, the third map */
		if (BUG == 4 && kind == 3 && !fresh)
			continue; /* BUG(4): as bug 1, the fourth map */
		if (BUG == 5 && kind == 4 && !fresh)
			continue; /* BUG(5): as bug 1, the fifth map */
		make_map(kind);
	}
	verify();
	zoo_threads(opts.threads, worker, NULL);
	printf("tx_maps: %ld ops, %lu nodes\n", opts.ops, verify());
	return 0;
}
