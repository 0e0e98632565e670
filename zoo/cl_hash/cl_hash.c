/*
 * A hash table whose bucket is one cache line: a lock word, three keys and three values. A full bucket makes the
 * table twice as large: the resizer freezes the old buckets one by one, builds and persists a new table behind
 * the old one, and swaps the root. After the P-CLHT design described in the papers on PM concurrency bugs.
 *
 * Lock words live in the buckets, in PM, so each flush of a bucket also saves a lock that is held: recovery
 * frees all locks. Get takes no lock.
 *
 * No thread acts on what another has not persisted:
 *  - a writer persists its bucket before it unlocks it, and the next writer must lock it first;
 *  - a reader that finds the bucket locked after reading it persists the line itself before it answers, be it a hit
 *    or a miss; an unlocked bucket has been persisted by its last writer;
 *  - the table in use is known from a DRAM pointer, which is set only after the root in PM is durable.
 */
#include <sched.h>
#include "../slab_kv/kv_ledger.h"

#ifndef BUG
#define BUG 0
#endif

#define POOL_SIZE (256u << 10)
#define MAGIC 0x687361686c63ull
#define SLOTS 3
#define FIRST_BUCKETS 4u
#define MAX_BUCKETS 1024u

enum { FREE, HELD, FROZEN }; /* states of a lock word; a frozen bucket belongs to a table that was replaced */

struct bucket {
	uint64_t lock;
	uint64_t key[SLOTS]; /* key + 1, or 0 for a free slot */
	uint64_t val[SLOTS];
	uint64_t pad;
};

struct table {
	uint64_t buckets;
	uint64_t pad[7];
	struct bucket bucket[];
};

struct pool {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t root; /* offset of the table in use */
	uint64_t resize_lock;
	struct kv_ledger ledger;
	uint8_t heap[] __attribute__((aligned(ZOO_LINE)));
};
_Static_assert(sizeof(struct bucket) == ZOO_LINE, "one bucket is one line");

static struct pool *pm;
static struct table *current;

static struct table *table_at(uint64_t off)
{
	return (struct table *)((uint8_t *)pm + off);
}

static uint64_t offset_of(const void *p)
{
	return (uint64_t)((const uint8_t *)p - (const uint8_t *)pm);
}

static size_t table_size(uint64_t buckets)
{
	return sizeof(struct table) + buckets * sizeof(struct bucket);
}

static struct table *table_now(void)
{
	if (BUG == 1) /* BUG(1): threads follow the root in PM, which a resizer has swapped but not persisted */
		return table_at(zoo_load(&pm->root)); /* BLAME(1) */
	return zoo_load(&current);
}

/* The top bits choose the bucket, so the entries of one bucket fit in its two successors when the table doubles. */
static struct bucket *bucket_of(struct table *t, uint64_t key)
{
	return &t->bucket[(key * 0x9e3779b97f4a7c15u >> 32) * t->buckets >> 32];
}

static bool try_lock(uint64_t *lock, uint64_t to)
{
	uint64_t expected = FREE;

	return __atomic_compare_exchange_n(lock, &expected, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED); /* BLAME(6, 7) */
}

/* Locks the bucket of a key in the table in use; a frozen one means that the next table is about to appear. */
static struct bucket *lock_bucket(struct table **t, uint64_t key)
{
	for (;;) {
		*t = table_now();
		struct bucket *b = bucket_of(*t, key);
		if (try_lock(&b->lock, HELD)) /* BLAME(6) */
			return b;
		sched_yield();
	}
}

static void unlock(uint64_t *lock)
{
	zoo_store(lock, FREE);
}

static int find_slot(const struct bucket *b, uint64_t stored)
{
	for (int i = 0; i < SLOTS; i++)
		if (zoo_load(&b->key[i]) == stored)
			return i;
	return -1;
}

/* A new table of twice the size, not yet in use. It lies behind the old one; tables are not recycled while threads run. */
static struct table *build_table(struct table *old)
{
	uint64_t n = old->buckets * 2, off = offset_of(old) + table_size(old->buckets);
	struct table *t = table_at(off);

	if (n > MAX_BUCKETS || off + table_size(n) > POOL_SIZE)
		zoo_fail("cl_hash: the pool is full");
	if (BUG != 12) /* BUG(12): memory of a resize that a crash cut short is taken for zeroes */
		memset(t->bucket, 0, table_size(n) - offsetof(struct table, bucket)); /* BLAME(9) */
	t->buckets = n; /* BLAME(8, 9) */
	for (uint64_t i = 0; i < old->buckets; i++) {
		struct bucket *from = &old->bucket[i];

		while (!try_lock(&from->lock, FROZEN))
			sched_yield();
		for (int s = 0; s < SLOTS; s++) {
			uint64_t key = zoo_load(&from->key[s]);
			struct bucket *to = key ? bucket_of(t, key - 1) : NULL;
			int at = to ? find_slot(to, 0) : 0;

			if (at < 0)
				zoo_fail("cl_hash: bucket %lu does not fit in its successors", i);
			if (to) {
				to->val[at] = zoo_load(&from->val[s]); /* BLAME(9, 12) */
				to->key[at] = key; /* BLAME(9, 12) */
			}
		}
	}
	if (BUG == 8) /* BUG(8): the size of the new table is not flushed, only its buckets */
		zoo_flush(t->bucket, n * sizeof(struct bucket));
	else
		zoo_flush(t, table_size(n)); /* BLAME(9) */
	if (BUG != 9) /* BUG(9): no fence between the flush of the new table and the swap of the root */
		zoo_fence();
	return t;
}

static void resize(struct table *old)
{
	while (!try_lock(&pm->resize_lock, HELD)) /* BLAME(7) */
		sched_yield();
	if (table_now() == old) {
		struct table *t = build_table(old);

		zoo_store(&pm->root, offset_of(t)); /* BLAME(1, 9) */
		zoo_persist(&pm->root, 8);
		zoo_store(&current, t);
	}
	unlock(&pm->resize_lock);
}

static void put(uint64_t key, uint64_t value)
{
	for (;;) {
		struct table *t;
		struct bucket *b = lock_bucket(&t, key);
		int at = find_slot(b, key + 1), old = at;

		if (BUG == 11 && at >= 0) { /* BUG(11): an update frees the slot and fills it again, so a crash loses the key */
			zoo_store(&b->key[at], 0); /* BLAME(11) */
			zoo_persist(b, sizeof *b); /* BLAME(11) */
			at = -1;
		}
		if (at >= 0) {
			zoo_store(&b->val[at], value); /* BLAME(2) */
		} else if ((at = find_slot(b, 0)) >= 0) {
			/* One line keeps the order of its stores: nobody meets the key with another value. */
			if (BUG == 10) /* BUG(10): the key is stored before its value */
				zoo_store(&b->key[at], key + 1); /* BLAME(10) */
			zoo_store(&b->val[at], value); /* BLAME(2) */
			if (BUG != 10)
				zoo_store(&b->key[at], key + 1); /* BLAME(2) */
		} else {
			unlock(&b->lock);
			resize(t);
			continue;
		}
		if (BUG == 2) /* BUG(2): the bucket is unlocked before the new pair is persisted */
			unlock(&b->lock);
		zoo_persist(b, sizeof *b);
		if (BUG == 13) /* BUG(13): the bucket is flushed a second time */
			zoo_persist(b, sizeof *b); /* BLAME(13) */
		if (BUG == 14) /* BUG(14): a second fence that orders nothing */
			zoo_fence(); /* BLAME(14) */
		if (BUG == 15 && old >= 0) /* BUG(15): an update does not unlock its bucket, and whoever comes next waits for ever */
			return;
		if (BUG != 2)
			unlock(&b->lock);
		return;
	}
}

static void del(uint64_t key)
{
	struct table *t;
	struct bucket *b = lock_bucket(&t, key);
	int at = find_slot(b, key + 1);

	if (at >= 0) {
		zoo_store(&b->key[at], 0); /* BLAME(4) */
		if (BUG == 4) { /* BUG(4): the bucket is unlocked before the removal is persisted */
			unlock(&b->lock);
			zoo_persist(b, sizeof *b);
			return;
		}
		zoo_persist(b, sizeof *b);
	}
	unlock(&b->lock);
}

static bool get(uint64_t key, uint64_t *value)
{
	const struct bucket *b = bucket_of(table_now(), key);
	bool hit = false;

	for (int i = 0; i < SLOTS && !hit; i++) {
		*value = zoo_load(&b->val[i]); /* BLAME(3) */
		/* Values are never stored twice, so the same value before and after means that it is this key's. */
		hit = zoo_load(&b->key[i]) == key + 1 && zoo_load(&b->val[i]) == *value; /* BLAME(3, 5) */
		if (!hit && zoo_load(&b->key[i]) == key + 1)
			i--; /* an update came between: read again */
	}
	if (BUG == 3 && hit) /* BUG(3): a hit in a locked bucket is reported without being persisted */
		return true;
	if (BUG == 5 && !hit) /* BUG(5): a miss in a locked bucket is reported without persisting what caused it */
		return false;
	if (zoo_load(&b->lock) == HELD)
		zoo_persist(b, sizeof *b);
	return hit;
}

static void walk(uint64_t found[KV_KEYS])
{
	uint64_t heap = offsetof(struct pool, heap), off = pm->root;

	if (off < heap || off % ZOO_LINE || off + sizeof(struct table) > POOL_SIZE)
		zoo_fail("the root leads to %lx", off);
	struct table *t = table_at(off);
	uint64_t n = t->buckets;
	if (n < FIRST_BUCKETS || n > MAX_BUCKETS || (n & (n - 1)) || off + table_size(n) > POOL_SIZE)
		zoo_fail("a table of %lu buckets", n);
	for (uint64_t i = 0; i < n; i++) {
		for (int s = 0; s < SLOTS; s++) {
			uint64_t key = t->bucket[i].key[s];

			if (key && bucket_of(t, key - 1) != &t->bucket[i])
				zoo_fail("key %lu is in bucket %lu", key - 1, i);
			if (key)
				kv_found(found, key - 1, t->bucket[i].val[s]);
		}
	}
}

static void verify(void)
{
	uint64_t found[KV_KEYS] = { 0 };

	walk(found);
	kv_verify(&pm->ledger, found);
	for (uint64_t i = 0; i < current->buckets; i++)
		if (current->bucket[i].lock != FREE)
			zoo_fail("the lock of bucket %lu was left held", i);
	if (pm->resize_lock != FREE)
		zoo_fail("the resize lock was left held");
}

static void free_lock(uint64_t *lock)
{
	if (*lock != FREE) {
		unlock(lock);
		zoo_persist(lock, sizeof *lock);
	}
}

static void recover(void)
{
	uint64_t found[KV_KEYS] = { 0 };

	walk(found);
	kv_recover(&pm->ledger, found);
	current = table_at(pm->root);
	if (BUG != 6) /* BUG(6): bucket locks that were held at the crash stay held */
		for (uint64_t i = 0; i < current->buckets; i++)
			free_lock(&current->bucket[i].lock);
	if (BUG != 7) /* BUG(7): a resize lock that was held at the crash stays held */
		free_lock(&pm->resize_lock);
}

int main(int argc, char **argv)
{
	struct zoo_opts o;
	int fresh;

	zoo_parse(argc, argv, &o);
	pm = zoo_map(o.pool, POOL_SIZE, &fresh);
	if (pm->magic != MAGIC) {
		struct table *t = (struct table *)pm->heap;

		zoo_store(&t->buckets, FIRST_BUCKETS);
		zoo_flush(&t->buckets, 8);
		zoo_store(&pm->root, offset_of(t));
		zoo_persist(&pm->root, 8);
		zoo_store(&pm->magic, MAGIC);
		zoo_persist(&pm->magic, 8);
	}
	recover();
	verify();
	struct kv_store store = { &pm->ledger, put, get, del };
	kv_workload(&store, &o);
	verify();
	kv_summary("cl_hash", &o, &pm->ledger);
	return 0;
}
