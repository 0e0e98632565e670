/*
 * Extendible hashing: a directory of 2^depth entries, indexed by the top bits of the hash, points at segments of four
 * one-line buckets. A full segment is split: the upper half of its hash range is copied to a new segment, the
 * directory entries of that half are turned to it, then the old segment's range is narrowed. What it still holds of
 * the upper half is stale, outside its range, and free to be overwritten. A segment as deep as the directory makes
 * the directory double first. After the CCEH design described in the PMRace paper.
 *
 * Reader-writer lock words live in the segments, in PM; recovery frees them. A crash in a split leaves directory
 * entries of the upper half divided between old and new segment: the deeper segment wins, recovery finishes the job.
 *
 * No thread acts on what another has not persisted: pairs are read and written under the lock of their segment and
 * persisted before it is released. Directory entries are read without a lock, but an entry that is not yet durable
 * leads to a segment that the splitter keeps locked until it is. The directory in use is known from a DRAM pointer,
 * set only after the pointer in PM is durable.
 */
#include <sched.h>
#include "../slab_kv/kv_ledger.h"

#ifndef BUG
#define BUG 0
#endif

#define POOL_SIZE (256u << 10)
#define MAGIC 0x6873616874786575ull
#define FIRST_DEPTH 1u
#define MAX_DEPTH 9u
#define SEGMENTS 384u
#define BUCKETS 4u
#define SLOTS 4u
#define WRITER (1ull << 63) /* in a lock word; below it the number of readers */

struct pair {
	uint64_t key, val; /* key + 1, or 0 for a free slot */
};

struct segment {
	_Alignas(ZOO_LINE) uint64_t lock;
	uint64_t range; /* depth << 32 | prefix: one word, so that it changes at once */
	_Alignas(ZOO_LINE) struct pair bucket[BUCKETS][SLOTS];
};

struct directory {
	_Alignas(ZOO_LINE) uint64_t depth;
	_Alignas(ZOO_LINE) uint64_t segment[]; /* offsets */
};

struct pool {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t directory; /* offset of the directory in use */
	uint64_t split_lock;                   /* one split at a time */
	struct kv_ledger ledger;
	/* Each depth has a place of its own, so a directory once replaced still leads late threads to segments. */
	_Alignas(ZOO_LINE) uint8_t directories[(16u << MAX_DEPTH) + (MAX_DEPTH + 1) * 2 * ZOO_LINE];
	struct segment segment[SEGMENTS];
};
_Static_assert(sizeof(struct pool) <= POOL_SIZE, "the pool holds its segments");

static struct pool *pm;
static struct directory *current;
static bool in_use[SEGMENTS]; /* reachable from the directory; guarded by the split lock */

static uint64_t offset_of(const void *p)
{
	return (uint64_t)((const uint8_t *)p - (const uint8_t *)pm);
}

static struct segment *segment_at(uint64_t off)
{
	uint64_t at = off - offsetof(struct pool, segment);

	if (off < offsetof(struct pool, segment) || at % sizeof(struct segment) || at / sizeof(struct segment) >= SEGMENTS)
		zoo_fail("ext_hash: no segment at %lx", off);
	return (struct segment *)((uint8_t *)pm + off);
}

static struct directory *directory_of_depth(uint64_t depth)
{
	/* The entries of all smaller directories take as much room as those of this one; two lines cover head and rounding. */
	return (struct directory *)(pm->directories + ((8ull << depth) & ~(ZOO_LINE - 1ull)) + depth * 2 * ZOO_LINE);
}

static struct directory *directory_now(void)
{
	if (BUG == 4)
		return (struct directory *)((uint8_t *)pm + zoo_load(&pm->directory));
	return zoo_load(&current);
}

static uint32_t hash(uint64_t key)
{
	return (uint32_t)(zoo_mix(key + 1) >> 32);
}

static uint64_t prefix(uint32_t h, uint64_t depth)
{
	return depth ? h >> (32 - depth) : 0;
}

static bool in_range(uint64_t range, uint64_t key)
{
	return prefix(hash(key), range >> 32) == (uint32_t)range;
}

static void lock_exclusive(uint64_t *lock)
{
	uint64_t expected = 0;

	while (!__atomic_compare_exchange_n(lock, &expected, WRITER, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) { /* BLAME(6, 7) */
		expected = 0;
		sched_yield();
	}
}

static void unlock_exclusive(uint64_t *lock)
{
	zoo_store(lock, 0);
}

static void lock_shared(uint64_t *lock)
{
	uint64_t n = zoo_load(lock) & ~WRITER;

	while (!__atomic_compare_exchange_n(lock, &n, n + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) { /* BLAME(6) */
		n &= ~WRITER;
		sched_yield();
	}
}

static void unlock_shared(uint64_t *lock)
{
	__atomic_fetch_sub(lock, 1, __ATOMIC_RELEASE);
}

/* Finds and locks the segment of a key. A split may narrow it before the lock is taken: then the way is looked up again. */
static struct segment *lock_segment(uint64_t key, void (*lock)(uint64_t *), void (*unlock)(uint64_t *))
{
	for (;;) {
		struct directory *d = directory_now();
		struct segment *s = segment_at(zoo_load(&d->segment[prefix(hash(key), d->depth)]));

		lock(&s->lock);
		if (in_range(zoo_load(&s->range), key))
			return s;
		unlock(&s->lock);
	}
}

/* A key lives in its home bucket or the one behind it. Returns its slot, or NULL. */
static struct pair *find_key(struct segment *s, uint64_t key)
{
	for (unsigned i = 0; i < 2 * SLOTS; i++) {
		struct pair *p = &s->bucket[(hash(key) / SLOTS + i / SLOTS) % BUCKETS][i % SLOTS];

		if (zoo_load(&p->key) == key + 1)
			return p;
	}
	return NULL;
}

/* A slot for a new key: a free one, or one whose key has moved out of the range of the segment. */
static struct pair *find_room(struct segment *s, uint64_t range, uint64_t key)
{
	for (unsigned i = 0; i < 2 * SLOTS; i++) {
		struct pair *p = &s->bucket[(hash(key) / SLOTS + i / SLOTS) % BUCKETS][i % SLOTS];

		if (!p->key || !in_range(range, p->key - 1))
			return p;
	}
	return NULL;
}

/* The caller holds the split lock, so no entry changes while the directory is copied. */
static void double_directory(struct directory *old)
{
	struct directory *d = directory_of_depth(old->depth + 1);

	if (old->depth == MAX_DEPTH)
		zoo_fail("ext_hash: the directory cannot grow");
	d->depth = old->depth + 1; /* BLAME(12) */
	for (uint64_t i = 0; i < 1ull << d->depth; i++)
		d->segment[i] = old->segment[i / 2];
	if (BUG != 12) /* BUG(12): the depth of the new directory is not flushed, only its entries */
		zoo_flush(&d->depth, 8);
	zoo_persist(d->segment, 8ull << d->depth);
	zoo_store(&pm->directory, offset_of(d)); /* BLAME(4) */
	if (BUG != 4) /* BUG(4): the doubled directory is in use before the pointer to it is persisted */
		zoo_persist(&pm->directory, 8);
	zoo_store(&current, d);
}

/* A new segment, locked, with what the old one holds of the upper half of its range; nothing points at it yet. */
static struct segment *upper_half(struct segment *s)
{
	uint64_t range = ((s->range >> 32) + 1) << 32 | (uint32_t)(s->range << 1 | 1);
	unsigned i = 0;

	while (i < SEGMENTS && in_use[i])
		i++;
	if (i == SEGMENTS)
		zoo_fail("ext_hash: out of segments");
	in_use[i] = true;
	struct segment *n = &pm->segment[i];
	/* Nobody else knows the segment, so whatever a crash left in the word, the lock is ours. */
	__atomic_exchange_n(&n->lock, BUG == 3 ? 0 : WRITER, __ATOMIC_ACQUIRE); /* BUG(3): the new segment is not locked while entries that lead to it are not persisted */
	n->range = range; /* BLAME(9) */
	for (i = 0; i < BUCKETS * SLOTS; i++) {
		struct pair *from = &s->bucket[i / SLOTS][i % SLOTS], *to = &n->bucket[i / SLOTS][i % SLOTS];
		bool moves = from->key && in_range(range, from->key - 1);

		to->val = moves ? from->val : 0; /* BLAME(8, 9) */
		to->key = moves ? from->key : 0; /* BLAME(8, 9) */
		if (BUG == 13 && moves) /* BUG(13): keys leave the old segment before the directory leads to the new one */
			zoo_store(&from->key, 0); /* BLAME(13) */
	}
	zoo_flush(n, BUG == 8 ? ZOO_LINE : sizeof *n); /* BUG(8): only the head of the new segment is flushed, not its pairs */ /* BLAME(9) */
	if (BUG == 13 || BUG == 14) /* BUG(14): the old segment is flushed, though nothing in it was written */
		zoo_flush(s->bucket, sizeof s->bucket); /* BLAME(14) */
	if (BUG != 9) /* BUG(9): no fence between the flush of the new segment and the entries that lead to it */
		zoo_fence();
	return n;
}

static void narrow(struct segment *s)
{
	zoo_store(&s->range, ((s->range >> 32) + 1) << 32 | (uint32_t)(s->range << 1)); /* BLAME(10) */
	zoo_persist(&s->range, 8);
}

/* Splits a segment that the caller has locked, and unlocks it. */
static void split(struct segment *s)
{
	lock_exclusive(&pm->split_lock); /* BLAME(7) */
	uint64_t depth = s->range >> 32, half = 2 * (uint64_t)(uint32_t)s->range + 1;
	bool doubled = depth == directory_now()->depth;

	if (doubled)
		double_directory(directory_now());
	struct directory *d = directory_now();
	struct segment *n = upper_half(s);
	uint64_t width = 1ull << (d->depth - depth - 1), *entry = &d->segment[half * width];
	if (BUG == 10) /* BUG(10): the old segment gives up the upper half before the directory leads to the new one */
		narrow(s); /* BLAME(10) */
	for (uint64_t i = 0; i < width; i++)
		zoo_store(&entry[i], offset_of(n)); /* BLAME(3, 9, 11) */
	zoo_persist(entry, width * 8);
	if (BUG != 10)
		narrow(s);
	if (BUG != 3)
		unlock_exclusive(&n->lock);
	unlock_exclusive(&pm->split_lock);
	unlock_exclusive(&s->lock);
	if (BUG == 4 && doubled)
		zoo_persist(&pm->directory, 8);
}

static void put(uint64_t key, uint64_t value)
{
	for (;;) {
		struct segment *s = lock_segment(key, lock_exclusive, unlock_exclusive);
		struct pair *p = find_key(s, key);

		if (p) {
			zoo_store(&p->val, value); /* BLAME(1) */
		} else if ((p = find_room(s, s->range, key))) {
			/* One line keeps the order of its stores: the key is never there without its value. */
			zoo_store(&p->val, value); /* BLAME(1) */
			zoo_store(&p->key, key + 1); /* BLAME(1) */
		} else {
			split(s);
			continue;
		}
		if (BUG == 1) /* BUG(1): the segment is unlocked before the pair is persisted */
			unlock_exclusive(&s->lock);
		zoo_persist(p, sizeof *p);
		if (BUG != 1)
			unlock_exclusive(&s->lock);
		return;
	}
}

static void del(uint64_t key)
{
	struct segment *s = lock_segment(key, lock_exclusive, unlock_exclusive);
	struct pair *p = find_key(s, key);

	if (p) {
		zoo_store(&p->key, 0); /* BLAME(2) */
		if (BUG == 2) /* BUG(2): the segment is unlocked before the removal is persisted */
			unlock_exclusive(&s->lock);
		zoo_persist(p, sizeof *p);
	}
	if (BUG != 2 || !p)
		unlock_exclusive(&s->lock);
}

#if BUG == 5
static void no_lock(uint64_t *lock)
{
	(void)lock;
}
#endif

static bool get(uint64_t key, uint64_t *value)
{
#if BUG == 5 /* BUG(5): a get reads the segment without its lock, and so pairs not yet persisted */
	for (;;) {
		struct segment *s = lock_segment(key, no_lock, no_lock);
		struct pair *p = find_key(s, key);

		*value = p ? zoo_load(&p->val) : 0; /* BLAME(5) */
		/* Torn reads are caught: the pair must still be this key's, the segment as wide as it was. */
		if (in_range(zoo_load(&s->range), key) && (!p || (zoo_load(&p->key) == key + 1 && zoo_load(&p->val) == *value))) /* BLAME(5) */
			return p;
	}
#else
	struct segment *s = lock_segment(key, lock_shared, unlock_shared);
	struct pair *p = find_key(s, key);

	*value = p ? p->val : 0;
	unlock_shared(&s->lock);
	return p;
#endif
}

/* The directory in use, after checking that it and all its entries are possible. */
static struct directory *check_directory(void)
{
	for (uint64_t depth = FIRST_DEPTH; depth <= MAX_DEPTH; depth++) {
		struct directory *d = directory_of_depth(depth);

		if (pm->directory != offset_of(d))
			continue;
		if (d->depth != depth)
			zoo_fail("the directory of depth %lu says %lu", depth, d->depth);
		for (uint64_t i = 0; i < 1ull << depth; i++) {
			uint64_t range = segment_at(d->segment[i])->range, deep = range >> 32;

			if (deep > depth || (uint32_t)range != i >> (depth - deep))
				zoo_fail("entry %lu leads to a segment of range %lx", i, range);
		}
		return d;
	}
	zoo_fail("no directory at %lx", pm->directory);
}

/* Every segment is led to by all entries of its range, and by no other; each pair in range is as it should be. */
static void walk(struct directory *d, uint64_t found[KV_KEYS])
{
	for (uint64_t i = 0, width; i < 1ull << d->depth; i += width) {
		struct segment *s = segment_at(d->segment[i]);

		width = 1ull << (d->depth - (s->range >> 32));
		for (uint64_t j = 0; j < width; j++)
			if (d->segment[i + j] != d->segment[i])
				zoo_fail("segment %lx does not fill its range", d->segment[i]);
		for (unsigned k = 0; k < BUCKETS * SLOTS; k++) {
			struct pair *p = &s->bucket[k / SLOTS][k % SLOTS];

			if (!p->key || (p->key <= KV_KEYS && !in_range(s->range, p->key - 1)))
				continue;
			kv_found(found, p->key - 1, p->val);
			if (find_key(s, p->key - 1) != p)
				zoo_fail("key %lu is in the wrong bucket", p->key - 1);
		}
	}
}

static void verify(void)
{
	uint64_t found[KV_KEYS] = { 0 };
	struct directory *d = check_directory();

	walk(d, found);
	kv_verify(&pm->ledger, found);
	for (uint64_t i = 0; i < 1ull << d->depth; i++)
		if (segment_at(d->segment[i])->lock)
			zoo_fail("the lock of segment %lx was left held", d->segment[i]);
	if (pm->split_lock)
		zoo_fail("the split lock was left held");
}

/* Finishes a split that a crash cut short: turns the rest of the upper half over, narrows the old segment. */
static void finish_splits(struct directory *d)
{
	for (uint64_t i = 0; i < 1ull << d->depth; i++) {
		struct segment *n = segment_at(d->segment[i]);
		uint64_t width = 1ull << (d->depth - (n->range >> 32)), first = (uint32_t)n->range * width;

		for (uint64_t j = first; j < first + width; j++) {
			struct segment *s = segment_at(d->segment[j]);

			if (s->range >> 32 < n->range >> 32) {
				zoo_store(&d->segment[j], offset_of(n));
				zoo_persist(&d->segment[j], 8);
			}
		}
	}
	/* Now an old segment has all of the lower half and nothing of the upper one. */
	for (uint64_t i = 0; i < 1ull << d->depth; i++) {
		struct segment *s = segment_at(d->segment[i]);
		uint64_t width = 1ull << (d->depth - (s->range >> 32));

		if (i == (uint32_t)s->range * width && d->segment[i + width - 1] != d->segment[i])
			narrow(s);
	}
}

/* Without a look at it: what a crash leaves in a lock word that is never flushed can be anything it ever held. */
static void free_lock(uint64_t *lock)
{
	unlock_exclusive(lock);
	zoo_persist(lock, sizeof *lock);
}

static void recover(void)
{
	uint64_t found[KV_KEYS] = { 0 };

	current = check_directory();
	if (BUG != 11) /* BUG(11): a split that a crash cut short is not finished */
		finish_splits(current);
	for (uint64_t i = 0; i < 1ull << current->depth; i++) {
		struct segment *s = segment_at(current->segment[i]);

		in_use[s - pm->segment] = true;
		if (BUG != 6) /* BUG(6): segment locks that were held at the crash stay held */
			free_lock(&s->lock);
	}
	if (BUG != 7) /* BUG(7): a split lock that was held at the crash stays held */
		free_lock(&pm->split_lock);
	walk(current, found);
	kv_recover(&pm->ledger, found);
}

static void format(void)
{
	struct directory *d = directory_of_depth(FIRST_DEPTH);

	zoo_store(&d->depth, FIRST_DEPTH);
	zoo_flush(&d->depth, 8);
	for (uint64_t i = 0; i < 1u << FIRST_DEPTH; i++) {
		zoo_store(&pm->segment[i].range, (uint64_t)FIRST_DEPTH << 32 | i);
		zoo_flush(&pm->segment[i].range, 8);
		zoo_store(&d->segment[i], offset_of(&pm->segment[i]));
	}
	zoo_flush(d->segment, 8u << FIRST_DEPTH);
	zoo_store(&pm->directory, offset_of(d));
	zoo_persist(&pm->directory, 8);
	zoo_store(&pm->magic, MAGIC);
	zoo_persist(&pm->magic, 8);
}

int main(int argc, char **argv)
{
	struct zoo_opts o;
	int fresh;

	zoo_parse(argc, argv, &o);
	pm = zoo_map(o.pool, POOL_SIZE, &fresh);
	if (pm->magic != MAGIC)
		format();
	recover();
	verify();
	struct kv_store store = { &pm->ledger, put, get, del };
	kv_workload(&store, &o);
	verify();
	kv_summary("ext_hash", &o, &pm->ledger);
	return 0;
}
