/*
 * A persistent chained hash map. Entries are linked in and out by one atomic store each, as nothing else
 * has to change with it but the entry count, which is guarded by a dirty flag: raised before a chain
 * changes, lowered together with the new count. Recovery counts anew when it finds the flag raised. When
 * chains grow long the map is copied into a table of twice the size, and one store switches over to it.
 */
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x68736168746100ull
#define POOL_SIZE (256u << 10)
#define NIL 1ull   /* not 0, so that memory never written is not mistaken for an empty chain */
#define KEYS 48
#define LEVELS 4   /* table l has FIRST << l buckets */
#define FIRST 8u
#define BUCKETS (FIRST * ((1u << LEVELS) - 1))
#define LOAD 2     /* entries per bucket that make the table grow */

struct entry {
	uint64_t key, version, value; /* the value is a function of key and version */
	uint64_t next;                /* offset of an entry, or NIL */
	uint64_t unused[4];
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic; /* stored last when the pool is made */
	_Alignas(ZOO_LINE) uint64_t level; /* which table is the live one */
	_Alignas(ZOO_LINE) uint64_t count; /* in one line with the flag, so that they persist in store order */
	uint64_t dirty;
	_Alignas(ZOO_LINE) uint64_t probes; /* unused but for BUG(16) */
	_Alignas(ZOO_LINE) uint64_t bucket[BUCKETS];
	_Alignas(ZOO_LINE) struct entry entries[];
};

#define ENTRIES ((POOL_SIZE - sizeof(struct root)) / sizeof(struct entry))

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread uint64_t *late; /* for some bugs: what the thread persists when it has released the lock */
static uint32_t free_entry[ENTRIES];
static size_t nfree;
static uint64_t hits;
static struct zoo_opts opts;
static int share[] = { 60, 30, 10 }; /* put, remove, get */

static uint64_t offset_of(const struct entry *e)
{
	return (uint64_t)((const char *)e - (const char *)root);
}

/* The entry at an offset read from the pool, which a crash may have made anything. */
static struct entry *entry_at(uint64_t off)
{
	uint64_t first = offsetof(struct root, entries);

	if (off < first || off >= first + ENTRIES * sizeof(struct entry) || (off - first) % sizeof(struct entry))
		zoo_fail("atomic_hash: bad offset %#lx", off);
	return (struct entry *)((char *)root + off);
}

static uint64_t value_of(uint64_t key, uint64_t version)
{
	return zoo_mix(key << 32 | version);
}

static uint64_t nbuckets(uint64_t level)
{
	return FIRST << level;
}

static uint64_t *bucket_of(uint64_t level, uint64_t key)
{
	return &root->bucket[nbuckets(level) - FIRST + zoo_mix(key) % nbuckets(level)];
}

/* Walks all chains of the live table; fails on anything no crash may leave. Returns the entry count. */
static uint64_t walk(uint8_t *used, uint64_t *digest)
{
	uint8_t seen[KEYS + 1] = { 0 };
	uint64_t n = 0, level = root->level;

	memset(used, 0, ENTRIES);
	*digest = 0;
	if (level >= LEVELS)
		zoo_fail("atomic_hash: bad level %lu", level);
	for (uint64_t b = 0; b < nbuckets(level); b++) {
		uint64_t *chain = &root->bucket[nbuckets(level) - FIRST + b];

		for (uint64_t off = *chain; off != NIL;) {
			struct entry *e = entry_at(off);

			if (used[e - root->entries]++)
				zoo_fail("atomic_hash: entry %#lx reached twice", off);
			if (e->key < 1 || e->key > KEYS || bucket_of(level, e->key) != chain || seen[e->key]++)
				zoo_fail("atomic_hash: bad, doubled or misplaced key %lu", e->key);
			if (e->value != value_of(e->key, e->version))
				zoo_fail("atomic_hash: torn entry of key %lu", e->key);
			*digest = zoo_mix(*digest ^ e->value);
			n++;
			off = e->next;
		}
	}
	return n;
}

/* The caller fences, so that one fence serves both the flag and a new entry. */
static void raise_dirty(void)
{
	zoo_store(&root->dirty, 1ul); /* BLAME(2, 5, 7) */
	zoo_flush(&root->dirty, sizeof root->dirty); /* BLAME(2, 5) */
}

static void set_count(uint64_t count)
{
	if (BUG == 4) { /* BUG(4): the flag is lowered before the count is right */
		zoo_store(&root->dirty, 0ul); /* BLAME(4) */
		zoo_persist(&root->dirty, sizeof root->dirty); /* BLAME(4) */
	}
	zoo_store(&root->count, count); /* BLAME(19) */
	if (BUG == 14) /* BUG(14): flushed once per word of the line, not once per line */
		zoo_flush(&root->count, sizeof root->count); /* BLAME(14) */
	if (BUG != 4)
		zoo_store(&root->dirty, 0ul); /* BLAME(19) */
	if (BUG == 14)
		zoo_flush(&root->count, sizeof root->count); /* BLAME(14) */
	if (BUG == 19) { /* BUG(19): count and flag are persisted after the lock is released */
		late = &root->dirty;
		return;
	}
	zoo_persist(&root->dirty, sizeof root->dirty); /* BLAME(14) */
}

static void clear_table(uint64_t level)
{
	uint64_t *b = &root->bucket[nbuckets(level) - FIRST];

	for (uint64_t i = 0; i < nbuckets(level); i++)
		b[i] = NIL; /* BLAME(13) */
}

static void create(void)
{
	clear_table(0); /* BLAME(13) */
	if (BUG != 13) /* BUG(13): the first table is not flushed before the magic number */
		zoo_flush(root->bucket, FIRST * sizeof root->bucket[0]);
	root->level = 0;
	zoo_flush(&root->level, sizeof root->level);
	root->count = 0;
	root->dirty = 0;
	zoo_persist(&root->count, sizeof root->count + sizeof root->dirty);
	zoo_store(&root->magic, MAGIC);
	zoo_persist(&root->magic, sizeof root->magic);
}

/* Counts anew if an operation was cut short, and finds the free entries. */
static void recover(void)
{
	static uint8_t used[ENTRIES];
	uint64_t digest, n = walk(used, &digest);

	if (BUG == 7) { /* BUG(7): counts chains, not entries */
		n = 0;
		for (uint64_t b = 0; b < nbuckets(root->level); b++)
			n += root->bucket[nbuckets(root->level) - FIRST + b] != NIL;
	}
	if (root->dirty > 1)
		zoo_fail("atomic_hash: bad flag %lu", root->dirty);
	if (BUG == 12 && root->dirty) { /* BUG(12): a crash right here leaves a wrong count believed right */
		zoo_store(&root->dirty, 0ul); /* BLAME(12) */
		zoo_persist(&root->dirty, sizeof root->dirty); /* BLAME(12) */
		zoo_store(&root->count, n);
		zoo_persist(&root->count, sizeof root->count);
	}
	if (root->dirty && BUG == 6) /* BUG(6): lowers the flag without counting */
		set_count(root->count); /* BLAME(6) */
	else if (root->dirty)
		set_count(n);
	nfree = 0;
	for (size_t i = ENTRIES; i-- > 0;)
		if (!used[i])
			free_entry[nfree++] = (uint32_t)i;
}

static void verify(uint64_t *n, uint64_t *digest)
{
	static uint8_t used[ENTRIES];

	*n = walk(used, digest);
	if (*n != root->count)
		zoo_fail("atomic_hash: %lu entries, counted %lu", *n, root->count);
}

/* Finds a key: the entry, and in *link the word that refers to it. */
static struct entry *find(uint64_t key, uint64_t **link)
{
	*link = bucket_of(root->level, key);
	while (**link != NIL) {
		struct entry *e = entry_at(**link);

		if (BUG == 16) /* BUG(16): a statistic that recovery never reads is kept in the pool */
			zoo_store(&root->probes, root->probes + 1); /* BLAME(16) */
		if (e->key == key)
			return e;
		*link = &e->next;
	}
	return NULL;
}

static void fill(struct entry *e, uint64_t key, uint64_t version, uint64_t next)
{
	e->key = key; /* BLAME(1, 2) */
	e->version = version; /* BLAME(1, 2) */
	e->value = value_of(key, version); /* BLAME(1, 2) */
	e->next = next; /* BLAME(1, 2) */
}

/*
 * Copies the map into the next table, entry by entry, and switches over. The old table stays whole until
 * then; its entries become free afterwards. One fence is enough: nothing refers to the copy before.
 */
static void grow(void)
{
	uint64_t old = root->level, copied = 0;
	uint64_t *from = &root->bucket[nbuckets(old) - FIRST], *to = &root->bucket[nbuckets(old + 1) - FIRST];
	uint64_t chain[FIRST << (LEVELS - 1)]; /* built in DRAM, so that each bucket is stored once */

	if (nfree < root->count)
		return;
	for (uint64_t i = 0; i < nbuckets(old + 1); i++)
		chain[i] = NIL;
	if (BUG == 8) { /* BUG(8): switches over before the new table is filled */
		zoo_store(&root->level, old + 1); /* BLAME(8) */
		zoo_persist(&root->level, sizeof root->level); /* BLAME(8) */
	}
	for (uint64_t b = 0; b < nbuckets(old); b++) {
		for (uint64_t off = from[b]; off != NIL;) {
			struct entry *e = entry_at(off), *c = &root->entries[free_entry[nfree - ++copied]];
			uint64_t i = (uint64_t)(bucket_of(old + 1, e->key) - to);

			fill(c, e->key, e->version, chain[i]);
			zoo_flush(c, sizeof *c);
			chain[i] = offset_of(c);
			if (BUG == 17) /* BUG(17): builds the chains in the pool, where buckets are stored many times */
				zoo_store(&to[i], chain[i]); /* BLAME(17) */
			off = e->next;
		}
	}
	zoo_copy(to, chain, nbuckets(old + 1) * sizeof *to); /* BLAME(9, 17) */
	if (BUG != 9) /* BUG(9): the new table is not flushed before it is switched to */
		zoo_flush(to, nbuckets(old + 1) * sizeof *to);
	zoo_fence();
	if (BUG != 8) {
		zoo_store(&root->level, old + 1);
		zoo_persist(&root->level, sizeof root->level);
	}
	nfree -= copied;
	for (uint64_t b = 0; b < nbuckets(old); b++)
		for (uint64_t off = from[b]; off != NIL; off = entry_at(off)->next)
			free_entry[nfree++] = (uint32_t)(entry_at(off) - root->entries);
}

static void put(uint64_t key)
{
	uint64_t *link;
	struct entry *old = find(key, &link), *e;

	if (old && BUG == 10) { /* BUG(10): an update in place, in two steps */
		zoo_store(&old->version, old->version + 1); /* BLAME(10) */
		zoo_persist(&old->version, sizeof old->version); /* BLAME(10) */
		zoo_store(&old->value, value_of(key, old->version)); /* BLAME(10) */
		zoo_persist(&old->value, sizeof old->value);
		return;
	}
	if (nfree == 0)
		return;
	if (!old && root->count >= LOAD * nbuckets(root->level) && root->level + 1 < LEVELS) {
		grow();
		find(key, &link); /* the end of the chain has moved */
	}
	if (nfree == 0)
		return;
	e = &root->entries[free_entry[--nfree]];
	fill(e, key, old ? old->version + 1 : 1, old ? old->next : NIL); /* BLAME(1, 2) */
	if (BUG != 1) /* BUG(1): the new entry is not flushed before it is linked in */
		zoo_flush(e, sizeof *e); /* BLAME(2) */
	if (!old)
		raise_dirty(); /* BLAME(2) */
	if (BUG != 2) /* BUG(2): nothing orders the new entry before its link */
		zoo_fence();
	zoo_store(link, offset_of(e)); /* BLAME(2, 3, 6, 18) */
	if (BUG == 18 && old) { /* BUG(18): the link to a new version is persisted after the lock is released */
		late = link;
		free_entry[nfree++] = (uint32_t)(old - root->entries);
		return;
	}
	if (BUG != 3) /* BUG(3): the link is not flushed */
		zoo_flush(link, sizeof *link);
	zoo_fence();
	if (BUG == 15) /* BUG(15): a second fence with nothing to wait for */
		zoo_fence(); /* BLAME(15) */
	if (old)
		free_entry[nfree++] = (uint32_t)(old - root->entries);
	else
		set_count(root->count + 1);
}

static void take_out(uint64_t key)
{
	uint64_t *link;
	struct entry *e = find(key, &link);

	if (!e)
		return;
	if (BUG != 11) { /* BUG(11): the flag is raised only after the chain has changed */
		raise_dirty(); /* BLAME(5) */
		if (BUG != 5) /* BUG(5): nothing orders the flag before the change of the chain */
			zoo_fence();
	}
	zoo_store(link, e->next); /* BLAME(5, 6, 11) */
	zoo_persist(link, sizeof *link); /* BLAME(11) */
	if (BUG == 11) {
		raise_dirty();
		zoo_fence();
	}
	set_count(root->count - 1);
	free_entry[nfree++] = (uint32_t)(e - root->entries);
}

static void worker(int id, void *arg)
{
	uint64_t rng = opts.seed ^ zoo_mix((uint64_t)id + 1), *link;

	(void)arg;
	for (long i = zoo_share(opts.ops, opts.threads, id); i > 0; i--) {
		int op = zoo_pick(&rng, share, 3);
		uint64_t key = zoo_rand(&rng) % KEYS + 1;

		pthread_mutex_lock(&lock);
		if (op == 0)
			put(key);
		else if (op == 1)
			take_out(key);
		else
			hits += find(key, &link) != NULL;
		pthread_mutex_unlock(&lock);
		if (late) {
			zoo_persist(late, sizeof *late);
			late = NULL;
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t n, digest;
	int fresh;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 3);
	root = zoo_map(opts.pool, POOL_SIZE, &fresh);
	if (fresh || root->magic == 0)
		create();
	else if (root->magic != MAGIC)
		zoo_fail("atomic_hash: not a pool of this program");
	recover();
	verify(&n, &digest);
	zoo_threads(opts.threads, worker, NULL);
	verify(&n, &digest);
	printf("atomic_hash: %ld ops, %lu entries, level %lu, %lu hits, digest %016lx\n", opts.ops, n, root->level,
	       hits, digest);
	return 0;
}
