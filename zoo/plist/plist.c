/*
 * A persistent singly linked list. A node is written and made durable first, then one 8-byte store (the
 * commit store) links it in: into the head for an insertion, into the predecessor for an update, which
 * replaces the node, and around the node for a removal. A separate counter, made durable after each
 * commit, tells the client how many nodes it may count on; recovery brings it up to date if a crash
 * fell between the two. Free nodes are those not reachable: that list lives in DRAM.
 */
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x7473696c70ull
#define POOL_SIZE (256u << 10)
#define NIL 1ull /* not 0, so that memory never written is not mistaken for an empty list */
#define KEYS 24

struct node {
	uint64_t key, version, value; /* the value is a function of key and version */
	uint64_t check;               /* of the three words above */
	uint64_t next;                /* offset of a node, or NIL */
	uint64_t unused[3];
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic; /* stored last when the pool is made */
	_Alignas(ZOO_LINE) uint64_t head;
	_Alignas(ZOO_LINE) uint64_t count;
	_Alignas(ZOO_LINE) uint64_t hits;  /* unused but for BUG(14) */
	_Alignas(ZOO_LINE) struct node nodes[];
};

#define NODES ((POOL_SIZE - sizeof(struct root)) / sizeof(struct node))

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread uint64_t *late; /* for some bugs: what the thread persists when it has released the lock */
static uint32_t free_node[NODES];
static size_t nfree;
static uint64_t hits;
static struct zoo_opts opts;
static int share[] = { 60, 25, 15 }; /* put, remove, get */

static uint64_t offset_of(const struct node *n)
{
	return (uint64_t)((const char *)n - (const char *)root);
}

/* The node at an offset read from the pool, which a crash may have made anything. */
static struct node *node_at(uint64_t off)
{
	uint64_t first = offsetof(struct root, nodes);

	if (off < first || off >= first + NODES * sizeof(struct node) || (off - first) % sizeof(struct node))
		zoo_fail("plist: bad offset %#lx", off);
	return (struct node *)((char *)root + off);
}

static uint64_t value_of(uint64_t key, uint64_t version)
{
	return zoo_mix(key << 32 | version);
}

/* Walks the whole list; fails on anything no crash may leave. Returns the number of nodes. */
static uint64_t walk(uint8_t *used, uint64_t *digest)
{
	uint8_t seen[KEYS + 1] = { 0 };
	uint64_t len = 0;

	memset(used, 0, NODES);
	*digest = 0;
	for (uint64_t off = root->head; off != NIL;) {
		struct node *n = node_at(off);

		if (used[n - root->nodes]++)
			zoo_fail("plist: cycle through %#lx", off);
		if (n->key < 1 || n->key > KEYS || seen[n->key]++)
			zoo_fail("plist: bad or doubled key %lu", n->key);
		if (n->value != value_of(n->key, n->version) || n->check != zoo_crc32(n, offsetof(struct node, check)))
			zoo_fail("plist: torn node of key %lu", n->key);
		*digest = zoo_mix(*digest ^ n->value);
		len++;
		off = n->next;
	}
	return len;
}

static void set_count(uint64_t count)
{
	zoo_store(&root->count, count); /* BLAME(8, 16) */
	if (BUG == 16) { /* BUG(16): the counter is persisted after the lock is released */
		late = &root->count;
		return;
	}
	if (BUG != 8) /* BUG(8): the counter is never flushed */
		zoo_persist(&root->count, sizeof root->count);
	if (BUG == 13) /* BUG(13): a second fence with nothing to wait for */
		zoo_fence(); /* BLAME(13) */
}

static void create(void)
{
	if (BUG == 10) { /* BUG(10): the pool is declared valid before it is */
		zoo_store(&root->magic, MAGIC); /* BLAME(10) */
		zoo_persist(&root->magic, sizeof root->magic); /* BLAME(10) */
	}
	root->head = NIL; /* BLAME(11) */
	root->count = 0; /* BLAME(11) */
	if (BUG != 11) /* BUG(11): the empty list is not flushed before the magic number */
		zoo_persist(&root->head, offsetof(struct root, hits) - offsetof(struct root, head));
	if (BUG != 10) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
}

/* Brings the counter up to date: it lags by the one operation that a crash can interrupt. */
static void recover(void)
{
	static uint8_t used[NODES];
	uint64_t digest, len = walk(used, &digest);
	int64_t lag = (int64_t)(len - root->count);

	if (lag < -1 || lag > 1)
		zoo_fail("plist: %lu nodes, counted %lu", len, root->count);
	if (BUG == 9 && lag < 0) /* BUG(9): an interrupted removal is not repaired */
		lag = 0;
	if (lag)
		set_count(len);
	nfree = 0;
	for (size_t i = NODES; i-- > 0;)
		if (!used[i])
			free_node[nfree++] = (uint32_t)i;
}

static void verify(uint64_t *len, uint64_t *digest)
{
	static uint8_t used[NODES];

	*len = walk(used, digest);
	if (*len != root->count)
		zoo_fail("plist: %lu nodes, counted %lu", *len, root->count);
}

/* Finds a key: the node, and in *link the word that refers to it. */
static struct node *find(uint64_t key, uint64_t **link)
{
	*link = &root->head;
	while (**link != NIL) {
		struct node *n = node_at(**link);

		if (n->key == key)
			return n;
		*link = &n->next;
	}
	return NULL;
}

static void fill(struct node *n, uint64_t key, uint64_t version, uint64_t next)
{
	if (BUG == 15) /* BUG(15): wiped first, so most words are written twice before one flush */
		memset(n, 0, sizeof *n); /* BLAME(15) */
	zoo_store(&n->key, key); /* BLAME(1, 2, 15) */
	n->version = version; /* BLAME(1, 2, 15) */
	n->value = value_of(key, version); /* BLAME(1, 2, 15) */
	n->check = zoo_crc32(n, offsetof(struct node, check)); /* BLAME(1, 2, 15) */
	n->next = next; /* BLAME(1, 2, 15) */
}

/* The commit store: what it makes reachable must be durable already. */
static void commit(uint64_t *link, uint64_t off)
{
	zoo_store(link, off); /* BLAME(2, 3, 5, 17) */
	if (BUG == 17) { /* BUG(17): the commit store is persisted after the lock is released */
		late = link;
		return;
	}
	if (BUG == 5) /* BUG(5): flushes what the link refers to, not the link */
		zoo_persist(node_at(off), sizeof(struct node)); /* BLAME(5) */
	else
		zoo_persist(link, sizeof *link);
}

static void put(uint64_t key)
{
	uint64_t *link;
	struct node *old = find(key, &link), *n;

	if (old && BUG == 6) { /* BUG(6): an update in place, in two steps */
		zoo_store(&old->version, old->version + 1); /* BLAME(6) */
		old->value = value_of(key, old->version); /* BLAME(6) */
		zoo_persist(old, sizeof *old); /* BLAME(6) */
		zoo_store(&old->check, (uint64_t)zoo_crc32(old, offsetof(struct node, check))); /* BLAME(6) */
		zoo_persist(old, sizeof *old);
		return;
	}
	if (nfree == 0)
		return;
	n = &root->nodes[free_node[--nfree]];
	if (!old)
		link = &root->head;
	if (BUG == 3 && !old) { /* BUG(3): linked in before it is filled in */
		uint64_t next = *link;

		commit(link, offset_of(n)); /* BLAME(3) */
		fill(n, key, 1, next);
		zoo_persist(n, sizeof *n);
	} else {
		fill(n, key, old ? old->version + 1 : 1, old ? old->next : *link); /* BLAME(1, 2) */
		if (BUG != 1) /* BUG(1): the new node is not flushed before the commit store */
			zoo_flush(n, sizeof *n); /* BLAME(2) */
		if (BUG == 12) /* BUG(12): the new node is flushed twice */
			zoo_flush(n, sizeof *n); /* BLAME(12) */
		if (BUG != 2) /* BUG(2): nothing orders the new node before the commit store */
			zoo_fence();
		commit(link, offset_of(n)); /* BLAME(2) */
	}
	if (old)
		free_node[nfree++] = (uint32_t)(old - root->nodes);
	else
		set_count(root->count + 1);
}

static void take_out(uint64_t key)
{
	uint64_t *link, next;
	struct node *n = find(key, &link);

	if (!n)
		return;
	next = n->next;
	if (BUG == 7) { /* BUG(7): wiped while it is still linked in */
		memset(n, 0, sizeof *n); /* BLAME(7) */
		zoo_persist(n, sizeof *n); /* BLAME(7) */
	}
	zoo_store(link, next); /* BLAME(4, 9) */
	if (BUG != 4) /* BUG(4): the unlinking store is not flushed before the node is used again */
		zoo_persist(link, sizeof *link);
	set_count(root->count - 1);
	free_node[nfree++] = (uint32_t)(n - root->nodes);
}

static void get(uint64_t key)
{
	uint64_t *link;

	if (!find(key, &link))
		return;
	hits++;
	if (BUG == 14) /* BUG(14): a statistic that recovery never reads is kept in the pool */
		zoo_store(&root->hits, root->hits + 1); /* BLAME(14) */
}

static void worker(int id, void *arg)
{
	uint64_t rng = opts.seed ^ zoo_mix((uint64_t)id + 1);

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
			get(key);
		pthread_mutex_unlock(&lock);
		if (late) {
			zoo_persist(late, sizeof *late);
			late = NULL;
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t len, digest;
	int fresh;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 3);
	root = zoo_map(opts.pool, POOL_SIZE, &fresh);
	if (fresh || root->magic == 0)
		create();
	else if (root->magic != MAGIC)
		zoo_fail("plist: not a pool of this program");
	recover();
	verify(&len, &digest);
	zoo_threads(opts.threads, worker, NULL);
	verify(&len, &digest);
	printf("plist: %ld ops, %lu nodes, %lu hits, digest %016lx\n", opts.ops, len, hits, digest);
	return 0;
}
