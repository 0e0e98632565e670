/*
 * A key-value store in the style of memcached: memory is cut into slabs, a slab holds items of one size class,
 * and live items are chained in a hash table. The table, the chains and the class of each slab are persistent.
 * Free lists are not: whatever no chain reaches is free, and the restart collects it.
 *
 * Writing is out of place. A put persists a new item, then one 8-byte store swaps it into the chain, then the old
 * item is given back. Items carry an id from a counter that is reserved in batches, as memcached's cas ids.
 *
 * No thread acts on what another has not persisted: chains are read and written only under the mutex of their
 * stripe, free lists and slab classes under that of the slabs, the id counter under its own, and every store is
 * persisted before its mutex is released. An item is on a free list only when its unlinking is durable.
 */
#include "kv_ledger.h"

#ifndef BUG
#define BUG 0
#endif

#define POOL_SIZE (256u << 10)
#define MAGIC 0x766b62616c73ull
#define SLAB_SIZE 4096u
#define SLABS 60u
#define CLASSES 3
#define BUCKETS 32u
#define STRIPES 8u
#define ID_BATCH 32u

enum { ITEM_LIVE = 1, ITEM_FREE = 2 };

struct item {
	uint64_t next; /* offset of the next item of the chain */
	uint64_t value, id;
	uint32_t key, crc; /* the checksum covers value, id, key, length and data */
	uint16_t len, state;
	uint32_t pad;
	uint8_t data[];
};

struct pool {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t id_limit; /* ids below it may be in use */
	_Alignas(ZOO_LINE) uint64_t bucket[BUCKETS];
	_Alignas(ZOO_LINE) uint64_t slab_class[SLABS]; /* class + 1, or 0 for a slab not yet taken */
	struct kv_ledger ledger;
	_Alignas(SLAB_SIZE) uint8_t slab[SLABS][SLAB_SIZE];
};
_Static_assert(sizeof(struct pool) <= POOL_SIZE, "the pool holds its slabs");

static const unsigned class_size[CLASSES] = { 64, 128, 256 };

static struct pool *pm;
static pthread_mutex_t stripe[STRIPES];
static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t id_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_id;
static uint64_t free_item[CLASSES][SLABS * SLAB_SIZE / 64];
static unsigned nfree[CLASSES];

static uint64_t offset_of(const struct item *it)
{
	return (uint64_t)((const uint8_t *)it - (const uint8_t *)pm);
}

/* The item at an offset, or NULL if no item can be there; pool contents are never trusted. */
static struct item *item_at(uint64_t off)
{
	uint64_t first = offsetof(struct pool, slab), at = off - first, s = at / SLAB_SIZE;

	if (off < first || s >= SLABS)
		return NULL;
	uint64_t c = zoo_load(&pm->slab_class[s]);
	if (c < 1 || c > CLASSES || at % SLAB_SIZE % class_size[c - 1])
		return NULL;
	return (struct item *)((uint8_t *)pm + off);
}

/* The same for an offset that comes from a chain, which was checked when the pool was opened. */
static struct item *linked_item(uint64_t off)
{
	return (struct item *)((uint8_t *)pm + off);
}

static int class_of(const struct item *it)
{
	return (int)zoo_load(&pm->slab_class[(offset_of(it) - offsetof(struct pool, slab)) / SLAB_SIZE]) - 1;
}

static uint64_t *bucket_of(uint64_t key)
{
	return &pm->bucket[zoo_mix(key) % BUCKETS];
}

static pthread_mutex_t *stripe_of(uint64_t key)
{
	return &stripe[zoo_mix(key) % BUCKETS % STRIPES];
}

static unsigned length_of(uint64_t value)
{
	return 1 + (unsigned)(zoo_mix(value) % 200);
}

static uint8_t byte_of(uint64_t value, unsigned i)
{
	return (uint8_t)(value >> (i % 8 * 8)) ^ (uint8_t)i;
}

static uint32_t checksum(const struct item *it)
{
	return zoo_crc32(&it->value, 16) ^ zoo_crc32(&it->key, 4) ^ zoo_crc32(it->data, it->len);
}

static bool item_intact(const struct item *it, int class)
{
	if (it->len != length_of(it->value) || sizeof *it + it->len > class_size[class] || it->crc != checksum(it))
		return false;
	for (unsigned i = 0; i < it->len; i++)
		if (it->data[i] != byte_of(it->value, i))
			return false;
	return true;
}

/* Gives an unused slab to the class. Its items may be linked at once, so the class must be durable by then. */
static uint64_t *take_slab(int class)
{
	unsigned s = 0;

	while (s < SLABS && pm->slab_class[s])
		s++;
	if (s == SLABS)
		zoo_fail("slab_kv: out of slabs");
	zoo_store(&pm->slab_class[s], (uint64_t)class + 1); /* BLAME(4) */
	if (BUG != 4) /* BUG(4): the class of a slab is persisted after the slab lock is released */
		zoo_persist(&pm->slab_class[s], 8);
	for (unsigned at = 0; at < SLAB_SIZE; at += class_size[class])
		free_item[class][nfree[class]++] = offset_of((struct item *)&pm->slab[s][at]);
	return &pm->slab_class[s];
}

static struct item *alloc_item(int class)
{
	uint64_t *taken = NULL;

	pthread_mutex_lock(&slab_lock);
	if (!nfree[class])
		taken = take_slab(class);
	struct item *it = item_at(free_item[class][--nfree[class]]);
	if (!it || it->state == ITEM_LIVE)
		zoo_fail("slab_kv: a live item is on a free list");
	pthread_mutex_unlock(&slab_lock);
	if (BUG == 4 && taken)
		zoo_persist(taken, 8);
	return it;
}

/* The item is out of its chain for good; from here on any thread may use its memory again. */
static void give_back(struct item *it)
{
	pthread_mutex_lock(&slab_lock);
	int class = class_of(it);
	it->state = ITEM_FREE; /* BLAME(3) */
	if (BUG != 3)
		zoo_persist(&it->state, sizeof it->state);
	free_item[class][nfree[class]++] = offset_of(it);
	pthread_mutex_unlock(&slab_lock);
}

/* Points a link of a chain elsewhere and gives back the item it pointed at, if any. */
static void swap_link(uint64_t *link, uint64_t to, struct item *old)
{
	zoo_store(link, to); /* BLAME(3, 8, 9, 10, 11) */
	if (BUG == 3 && old) { /* BUG(3): an item is free for reuse before its unlinking is persisted */
		give_back(old);
		zoo_flush(&old->state, sizeof old->state);
		old = NULL;
	}
	zoo_persist(link, 8);
	if (old)
		give_back(old);
}

/* Ids come in batches, so that the counter is written once per batch and not once per item. */
static uint64_t take_id(void)
{
	bool grown = false;

	pthread_mutex_lock(&id_lock);
	if (next_id == pm->id_limit) {
		zoo_store(&pm->id_limit, next_id + ID_BATCH); /* BLAME(6) */
		if (BUG != 6) /* BUG(6): a batch of ids is persisted after the lock that guards it is released */
			zoo_persist(&pm->id_limit, 8);
		grown = true;
	}
	uint64_t id = next_id++;
	pthread_mutex_unlock(&id_lock);
	if (BUG == 6 && grown)
		zoo_persist(&pm->id_limit, 8);
	return id;
}

static uint64_t *find_link(uint64_t key)
{
	uint64_t *link = bucket_of(key);

	while (*link && linked_item(*link)->key != key)
		link = &linked_item(*link)->next;
	return link;
}

static void fill_item(struct item *it, uint64_t key, uint64_t value, uint64_t next)
{
	it->next = next; /* BLAME(8) */
	it->value = value; /* BLAME(8) */
	it->id = take_id(); /* BLAME(8) */
	it->key = (uint32_t)key; /* BLAME(8) */
	it->len = (uint16_t)length_of(value); /* BLAME(8) */
	for (unsigned i = 0; i < it->len; i++)
		it->data[i] = byte_of(value, i); /* BLAME(7, 8) */
	it->crc = checksum(it); /* BLAME(8) */
	it->state = ITEM_LIVE; /* BLAME(8, 11) */
	size_t used = sizeof *it + it->len;
	if (BUG == 12) /* BUG(12): the whole slot is flushed, though most of it was not written */
		used = class_size[class_of(it)];
	if (BUG == 7) /* BUG(7): only the first line of an item is flushed */
		used = ZOO_LINE;
	zoo_flush(it, used); /* BLAME(8, 12) */
	if (BUG != 8) /* BUG(8): no fence between the flush of an item and the store that links it */
		zoo_fence();
}

static void put(uint64_t key, uint64_t value)
{
	int class = 0;

	while (sizeof(struct item) + length_of(value) > class_size[class])
		class++;
	pthread_mutex_lock(stripe_of(key));
	uint64_t *link = find_link(key);
	struct item *old = *link ? linked_item(*link) : NULL, *it = alloc_item(class);
	uint64_t next = old ? old->next : 0;
	if (BUG == 9) { /* BUG(9): an item is linked before it is filled in */
		it->next = next;
		swap_link(link, offset_of(it), NULL); /* BLAME(9) */
		fill_item(it, key, value, next);
		if (old)
			give_back(old);
	} else if (BUG == 10 && old) { /* BUG(10): a replacement unlinks the old item before it links the new one */
		swap_link(link, next, old); /* BLAME(10) */
		link = bucket_of(key);
		fill_item(it, key, value, *link);
		swap_link(link, offset_of(it), NULL);
	} else {
		fill_item(it, key, value, next);
		if (BUG == 1 && !old) { /* BUG(1): the link to a new item is persisted after the stripe is unlocked */
			zoo_store(link, offset_of(it)); /* BLAME(1) */
			pthread_mutex_unlock(stripe_of(key));
			zoo_persist(link, 8);
			return;
		}
		swap_link(link, offset_of(it), old); /* BLAME(8) */
	}
	pthread_mutex_unlock(stripe_of(key));
}

static void del(uint64_t key)
{
	pthread_mutex_lock(stripe_of(key));
	uint64_t *link = find_link(key);
	struct item *old = *link ? linked_item(*link) : NULL;
	if (BUG == 2 && old) { /* BUG(2): the unlinking of a removed item is persisted after the stripe is unlocked */
		zoo_store(link, old->next); /* BLAME(2) */
		pthread_mutex_unlock(stripe_of(key));
		zoo_persist(link, 8);
		give_back(old);
		return;
	}
	if (old)
		swap_link(link, old->next, old);
	pthread_mutex_unlock(stripe_of(key));
}

#if BUG == 5
/* A get that hopes to do without the lock: right about torn items, wrong about unpersisted links. */
static bool get_unlocked(uint64_t key, uint64_t *value)
{
	uint64_t off = zoo_load(bucket_of(key)); /* BLAME(5) */

	for (int steps = 0; off && steps < KV_KEYS; steps++) {
		struct item *it = item_at(off), copy;

		if (!it)
			return false;
		memcpy(&copy, it, sizeof copy); /* BLAME(5) */
		if (copy.key == key) {
			*value = copy.value;
			return copy.state == ITEM_LIVE && copy.value == kv_value(key, kv_version(copy.value)) &&
			       zoo_load(&it->value) == copy.value && zoo_load(bucket_of(key)) == off; /* BLAME(5) */
		}
		off = copy.next;
	}
	return false;
}
#endif

static bool get(uint64_t key, uint64_t *value)
{
#if BUG == 5 /* BUG(5): a get reads the chain without its lock, and so links not yet persisted */
	if (get_unlocked(key, value)) /* BLAME(5) */
		return true;
#endif
	pthread_mutex_lock(stripe_of(key));
	uint64_t off = *find_link(key);
	if (off)
		*value = linked_item(off)->value;
	pthread_mutex_unlock(stripe_of(key));
	return off != 0;
}

/* Walks all chains; marks live items, one flag per 64 bytes of slab. Returns how many there are. */
static unsigned walk(uint64_t found[KV_KEYS], uint8_t *live)
{
	unsigned n = 0;

	for (unsigned s = 0; s < SLABS; s++)
		if (pm->slab_class[s] > CLASSES)
			zoo_fail("slab %u is of class %lu", s, pm->slab_class[s]);
	for (unsigned b = 0; b < BUCKETS; b++) {
		for (uint64_t off = pm->bucket[b]; off; n++) {
			struct item *it = item_at(off);

			if (!it)
				zoo_fail("bucket %u leads to %lx, where no item is", b, off);
			uint8_t *mark = &live[(off - offsetof(struct pool, slab)) / 64];
			if (*mark)
				zoo_fail("item %lx is in two chains, or in a cycle", off);
			*mark = 1;
			if (it->state != ITEM_LIVE || it->id >= pm->id_limit || bucket_of(it->key) != &pm->bucket[b] ||
			    !item_intact(it, class_of(it)))
				zoo_fail("item %lx of bucket %u is damaged", off, b);
			kv_found(found, it->key, it->value);
			off = it->next;
		}
	}
	return n;
}

static void verify(void)
{
	static uint8_t live[SLABS * SLAB_SIZE / 64];
	uint64_t found[KV_KEYS] = { 0 };
	unsigned total = 0;

	memset(live, 0, sizeof live);
	unsigned known = walk(found, live);
	kv_verify(&pm->ledger, found);
	for (int c = 0; c < CLASSES; c++)
		known += nfree[c];
	for (unsigned s = 0; s < SLABS; s++)
		total += pm->slab_class[s] ? SLAB_SIZE / class_size[pm->slab_class[s] - 1] : 0;
	if (known != total)
		zoo_fail("%u items are neither live nor free", total - known);
}

/* Collects what no chain reaches. A crash may have cut a put or a removal short, leaving such an item marked live. */
static void recover(void)
{
	static uint8_t live[SLABS * SLAB_SIZE / 64];
	uint64_t found[KV_KEYS] = { 0 };

	walk(found, live);
	kv_recover(&pm->ledger, found);
	for (unsigned s = 0; s < SLABS; s++) {
		for (unsigned at = 0; pm->slab_class[s] && at < SLAB_SIZE; at += class_size[pm->slab_class[s] - 1]) {
			struct item *it = (struct item *)&pm->slab[s][at];

			if (live[(s * SLAB_SIZE + at) / 64])
				continue;
			if (it->state == ITEM_LIVE) {
				if (BUG == 11) /* BUG(11): items of operations cut short are not collected, and leak */
					continue;
				it->state = ITEM_FREE;
				zoo_persist(&it->state, sizeof it->state);
			}
			int class = class_of(it);
			free_item[class][nfree[class]++] = offset_of(it);
		}
	}
	next_id = pm->id_limit;
}

int main(int argc, char **argv)
{
	struct zoo_opts o;
	int fresh;

	zoo_parse(argc, argv, &o);
	pm = zoo_map(o.pool, POOL_SIZE, &fresh);
	for (unsigned i = 0; i < STRIPES; i++)
		pthread_mutex_init(&stripe[i], NULL);
	if (pm->magic != MAGIC) { /* an empty file is an empty store; only the magic number is missing */
		zoo_store(&pm->magic, MAGIC);
		zoo_persist(&pm->magic, 8);
	}
	recover();
	verify();
	struct kv_store store = { &pm->ledger, put, get, del };
	kv_workload(&store, &o);
	verify();
	kv_summary("slab_kv", &o, &pm->ledger);
	return 0;
}
