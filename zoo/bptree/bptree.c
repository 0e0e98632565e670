/*
 * A B+-tree whose nodes have a sibling pointer and a high key, so that a node split is complete as soon as the left
 * half links the right one; the entry in the parent is only a shortcut. After the FAST&FAIR design described in the
 * papers on PM concurrency bugs.
 *
 * Entries are sorted and moved one by one with 8-byte stores. An entry is valid if its pointer is neither 0 nor that
 * of its left neighbour, so at each store of a move exactly one copy is valid. Within a line stores keep their
 * order; where a move crosses lines, the line left behind is persisted first. Recovery removes invalid copies and
 * entries beyond the high key, and adds the parent entries that a crash kept from being added.
 *
 * Searches take no lock. Each node has a mutex and a version in DRAM, the version odd while the node is written. No
 * thread acts on what another has not persisted: whatever is read without the mutex, value or pointer, is used only
 * if the version was even and the same before and after; a writer persists the node before it makes the version even.
 * The root in use is known from a DRAM pointer, set only after the root in PM is durable.
 */
#include <sched.h>
#include "../slab_kv/kv_ledger.h"

#ifndef BUG
#define BUG 0
#endif

#define POOL_SIZE (256u << 10)
#define MAGIC 0x656572747062ull
#define FANOUT 8
#define LINE_ENTRIES 4
#define NODES 512u
#define MAX_LEVEL 8u
#define LEAF_MARK 1ull /* left neighbour of a leaf's first entry: no value, no offset */
#define NO_LIMIT UINT64_MAX

struct entry {
	uint64_t key, ptr; /* ptr is the value in a leaf, the offset of a child elsewhere; 0 ends the entries */
};

struct node {
	_Alignas(ZOO_LINE) uint64_t level; /* 0 for a leaf */
	uint64_t sibling;                  /* offset of the node to the right, or 0 */
	uint64_t high;                     /* all keys here are below it */
	uint64_t leftmost;                 /* child for keys below the first entry, or LEAF_MARK */
	_Alignas(ZOO_LINE) struct entry e[FANOUT];
};

struct pool {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t root;
	uint64_t root_lock;
	struct kv_ledger ledger;
	struct node node[NODES];
};
_Static_assert(sizeof(struct pool) <= POOL_SIZE, "the pool holds its nodes");

static struct pool *pm;
static struct node *root;
static struct {
	pthread_mutex_t lock;
	uint64_t version;
} side[NODES];
static pthread_mutex_t alloc_lock = PTHREAD_MUTEX_INITIALIZER;
static bool in_use[NODES];

static uint64_t offset_of(const struct node *n)
{
	return (uint64_t)((const uint8_t *)n - (const uint8_t *)pm);
}

static struct node *node_at(uint64_t off)
{
	uint64_t at = off - offsetof(struct pool, node);

	if (off < offsetof(struct pool, node) || at % sizeof(struct node) || at / sizeof(struct node) >= NODES)
		zoo_fail("bptree: no node at %lx", off);
	return (struct node *)((uint8_t *)pm + off);
}

static uint64_t *version_of(const struct node *n)
{
	return &side[n - pm->node].version;
}

/*
 * The versions are in DRAM and their users take no lock, so no trace of PM shows what they exclude: pmvet.toml declares
 * these four as the lock they are. Real functions, so that they can be named there.
 */
#define SYNC static __attribute__((noipa))

/* The writer, which holds the mutex, shuts readers out, */
SYNC void write_begin(uint64_t *version)
{
	zoo_store(version, *version + 1);
}

/* and lets them in again. */
SYNC void write_end(uint64_t *version)
{
	zoo_store(version, *version + 1);
}

SYNC uint64_t read_begin(const uint64_t *version)
{
	uint64_t v;

	while ((v = zoo_load(version)) & 1)
		sched_yield();
	return v;
}

/* Ends what read_begin began: whatever was read in between may be used only if this is true. */
SYNC bool read_valid(const uint64_t *version, uint64_t v)
{
	return zoo_load(version) == v;
}

static void lock_node(struct node *n)
{
	pthread_mutex_lock(&side[n - pm->node].lock);
	write_begin(version_of(n));
}

static void unlock_node(struct node *n)
{
	write_end(version_of(n));
	pthread_mutex_unlock(&side[n - pm->node].lock);
}

static uint64_t left_ptr(const struct node *n, int i)
{
	return i ? zoo_load(&n->e[i - 1].ptr) : zoo_load(&n->leftmost);
}

static int count(const struct node *n)
{
	int i = 0;

	while (i < FANOUT && zoo_load(&n->e[i].ptr))
		i++;
	return i;
}

static int find(const struct node *n, uint64_t key)
{
	for (int i = 0; i < FANOUT && zoo_load(&n->e[i].ptr); i++)
		if (zoo_load(&n->e[i].key) == key && zoo_load(&n->e[i].ptr) != left_ptr(n, i))
			return i;
	return -1;
}

static uint64_t child_for(const struct node *n, uint64_t key)
{
	uint64_t ptr = zoo_load(&n->leftmost);

	for (int i = 0; i < FANOUT && zoo_load(&n->e[i].ptr) && zoo_load(&n->e[i].key) <= key; i++)
		ptr = zoo_load(&n->e[i].ptr);
	return ptr;
}

/* The node of a level whose range had the key when it was read, reached without a lock. */
static struct node *descend(uint64_t key, uint64_t level)
{
	struct node *n = zoo_load(&root);

	for (;;) {
		uint64_t v = read_begin(version_of(n)), next = 0;

		if (key >= zoo_load(&n->high))
			next = zoo_load(&n->sibling);
		else if (n->level != level)
			next = child_for(n, key);
		if (!read_valid(version_of(n), v))
			continue;
		if (!next)
			return n;
		n = node_at(next);
	}
}

static struct node *lock_covering(uint64_t key, uint64_t level)
{
	struct node *n = descend(key, level);

	lock_node(n);
	while (key >= n->high) {
		struct node *next = node_at(n->sibling);

		unlock_node(n);
		n = next;
		lock_node(n);
	}
	return n;
}

/* Makes room at the place of the key and fills it. The caller persists the entry returned; all else is durable. */
static struct entry *insert_entry(struct node *n, uint64_t key, uint64_t ptr)
{
	int last = count(n), i = last;

	for (; i > 0 && n->e[i - 1].key > key; i--) {
		zoo_store(&n->e[i].ptr, n->e[i - 1].ptr); /* BLAME(3, 10, 11) */
		zoo_store(&n->e[i].key, n->e[i - 1].key); /* BLAME(3, 10) */
		if (i % LINE_ENTRIES == 0 && BUG != 10) /* BUG(10): an entry moves to the next line, which is not persisted */
			zoo_persist(&n->e[i], sizeof n->e[i]);
	}
	if (i < last)
		zoo_store(&n->e[i].ptr, left_ptr(n, i)); /* BLAME(3) */
	zoo_store(&n->e[i].key, key); /* BLAME(3) */
	zoo_store(&n->e[i].ptr, ptr); /* BLAME(3) */
	return &n->e[i];
}

/* Takes an entry out, valid or not, and closes the gap. The caller persists the entry returned. */
static struct entry *remove_entry(struct node *n, int i)
{
	int last = count(n) - 1;

	if (i < last)
		zoo_store(&n->e[i].ptr, left_ptr(n, i)); /* BLAME(4) */
	for (; i < last; i++) {
		zoo_store(&n->e[i].key, n->e[i + 1].key); /* BLAME(4) */
		zoo_store(&n->e[i].ptr, n->e[i + 1].ptr); /* BLAME(4) */
		if ((i + 1) % LINE_ENTRIES == 0)
			zoo_persist(&n->e[i], sizeof n->e[i]);
	}
	zoo_store(&n->e[last].ptr, 0); /* BLAME(4) */
	return &n->e[last];
}

static struct node *alloc_node(void)
{
	unsigned i = 0;

	pthread_mutex_lock(&alloc_lock);
	while (i < NODES && in_use[i])
		i++;
	if (i == NODES)
		zoo_fail("bptree: out of nodes");
	in_use[i] = true;
	pthread_mutex_unlock(&alloc_lock);
	return &pm->node[i];
}

static void truncate_node(struct node *n, int to)
{
	for (int i = FANOUT - 1; i >= to; i--)
		zoo_store(&n->e[i].ptr, 0); /* BLAME(9) */
	zoo_persist(&n->e[to], (size_t)(FANOUT - to) * sizeof n->e[0]);
}

/* Splits a full node that the caller has locked. Returns the new right half. */
static struct node *split(struct node *n)
{
	/* At the right edge only two entries move, so that keys that come in order leave full nodes behind. */
	bool append = !n->sibling;
	int mid = append ? FANOUT - 2 : FANOUT / 2, from = n->level ? mid + 1 : mid;
	uint64_t separator = n->e[mid].key;
	struct node *r = alloc_node();

	r->level = n->level; /* BLAME(8) */
	r->sibling = n->sibling; /* BLAME(8) */
	r->high = n->high; /* BLAME(8) */
	r->leftmost = n->level ? n->e[mid].ptr : LEAF_MARK; /* BLAME(8) */
	for (int i = 0; i < FANOUT; i++)
		r->e[i] = from + i < FANOUT ? n->e[from + i] : (struct entry){ 0, 0 }; /* BLAME(7, 8) */
	zoo_flush(r, BUG == 7 ? ZOO_LINE : sizeof *r); /* BUG(7): only the head of the new node is flushed, not its entries */ /* BLAME(8) */
	if (BUG != 8) /* BUG(8): no fence between the flush of the new node and the store that links it */
		zoo_fence();
	if (BUG == 9) /* BUG(9): the left node drops the upper half before it links the right one */
		truncate_node(n, mid); /* BLAME(9) */
	/* Sibling first: until the high key is lowered, the left node still answers for all keys. */
	zoo_store(&n->sibling, offset_of(r)); /* BLAME(1, 2, 8, 11) */
	zoo_store(&n->high, separator); /* BLAME(1, 2, 8) */
	bool early = !n->level && ((BUG == 1 && !append) || /* BUG(1): others may follow the link to the right half before it is persisted */
				   (BUG == 2 && append));   /* BUG(2): the same, only where the rightmost leaf is split */
	if (early)
		write_end(version_of(n)); /* BLAME(1, 2) */
	zoo_persist(n, ZOO_LINE);
	if (early)
		write_begin(version_of(n));
	if (BUG != 9)
		truncate_node(n, mid);
	return r;
}

static void lock_root(void)
{
	uint64_t expected = 0;

	while (!__atomic_compare_exchange_n(&pm->root_lock, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) { /* BLAME(6) */
		expected = 0;
		sched_yield();
	}
}

/* Puts a new root above the old one, unless another thread was faster. */
static void grow(uint64_t level, uint64_t separator, struct node *right)
{
	lock_root(); /* BLAME(6) */
	if (root->level < level) {
		struct node *r = alloc_node();

		r->level = level;
		r->sibling = 0;
		r->high = NO_LIMIT;
		r->leftmost = offset_of(root);
		memset(r->e, 0, sizeof r->e);
		r->e[0] = (struct entry){ separator, offset_of(right) };
		zoo_persist(r, sizeof *r);
		zoo_store(&pm->root, offset_of(r));
		zoo_persist(&pm->root, 8);
		zoo_store(&root, r);
	}
	zoo_store(&pm->root_lock, 0);
}

/* Adds the shortcut to a right half to the level above. Does nothing if it is there. */
static void insert_parent(uint64_t level, uint64_t separator, struct node *right)
{
	if (zoo_load(&root)->level < level)
		grow(level, separator, right);
	for (;;) {
		struct node *n = lock_covering(separator, level);

		/* As an entry, or as the leftmost child if a split of this level moved the separator up. */
		if (child_for(n, separator) == offset_of(right)) {
			unlock_node(n);
			return;
		}
		if (count(n) < FANOUT) {
			struct entry *e = insert_entry(n, separator, offset_of(right));

			zoo_persist(e, sizeof *e);
			unlock_node(n);
			return;
		}
		struct node *r = split(n);
		uint64_t up = n->high;
		unlock_node(n);
		insert_parent(level + 1, up, r);
	}
}

static void put(uint64_t key, uint64_t value)
{
	for (;;) {
		struct node *n = lock_covering(key, 0);
		int i = find(n, key);

		if (i >= 0) {
			zoo_store(&n->e[i].ptr, value); /* BLAME(5) */
			if (BUG == 5) /* BUG(5): an update is a single store, so readers are let in before it is persisted */
				write_end(version_of(n));
			if (BUG == 12) /* BUG(12): an update flushes the whole node */
				zoo_persist(n, sizeof *n); /* BLAME(12) */
			else
				zoo_persist(&n->e[i], sizeof n->e[i]);
			if (BUG == 5)
				write_begin(version_of(n));
			unlock_node(n);
			return;
		}
		if (count(n) < FANOUT) {
			struct entry *e = insert_entry(n, key, value);

			if (BUG == 3) /* BUG(3): the leaf is unlocked before the new entry is persisted */
				unlock_node(n);
			zoo_persist(e, sizeof *e);
			if (BUG != 3)
				unlock_node(n);
			return;
		}
		struct node *r = split(n);
		uint64_t separator = n->high;
		unlock_node(n);
		insert_parent(1, separator, r);
	}
}

static void del(uint64_t key)
{
	struct node *n = lock_covering(key, 0);
	int i = find(n, key);

	if (i >= 0) {
		struct entry *e = remove_entry(n, i);

		if (BUG == 4) { /* BUG(4): the leaf is unlocked before the removal is persisted */
			unlock_node(n);
			zoo_persist(e, sizeof *e);
			return;
		}
		zoo_persist(e, sizeof *e);
	}
	unlock_node(n);
}

static bool get(uint64_t key, uint64_t *value)
{
	for (;;) {
		struct node *n = descend(key, 0);
		uint64_t v = read_begin(version_of(n));
		int i = find(n, key);
		bool covers = key < zoo_load(&n->high);

		*value = i >= 0 ? zoo_load(&n->e[i].ptr) : 0;
		if (read_valid(version_of(n), v) && covers)
			return i >= 0;
	}
}

/* Calls visit for all nodes, top down and from left to right, with the lower bound of their keys. Marks nodes as used. */
static void walk(void (*visit)(struct node *n, uint64_t low, void *arg), void *arg)
{
	struct node *first = node_at(pm->root);

	if (first->level > MAX_LEVEL)
		zoo_fail("a root of level %lu", first->level);
	memset(in_use, 0, sizeof in_use);
	for (uint64_t level = first->level;; level--) {
		uint64_t low = 0;

		for (struct node *n = first; n; n = n->sibling ? node_at(n->sibling) : NULL) {
			if (in_use[n - pm->node] || n->level != level || n->high <= low || (!n->sibling && n->high != NO_LIMIT))
				zoo_fail("node %lx does not belong to level %lu", offset_of(n), level);
			in_use[n - pm->node] = true;
			visit(n, low, arg);
			low = n->high;
		}
		if (!level)
			return;
		first = node_at(first->leftmost);
	}
}

struct check {
	uint64_t found[KV_KEYS];
	uint64_t expected[NODES]; /* lower bound + 1 of a node as its parent gives it, 0 if no parent has it */
};

static void check_node(struct node *n, uint64_t low, void *arg)
{
	struct check *c = arg;
	uint64_t at = low;

	if (n != node_at(pm->root) && c->expected[n - pm->node] != low + 1)
		zoo_fail("node %lx is not where its parent has it", offset_of(n));
	if (n->level)
		c->expected[node_at(n->leftmost) - pm->node] = low + 1;
	else if (n->leftmost != LEAF_MARK)
		zoo_fail("leaf %lx has a child", offset_of(n));
	for (int i = 0; i < FANOUT; i++) {
		struct entry *e = &n->e[i];

		if (!e->ptr)
			continue;
		if (i >= count(n) || e->key < at || e->key >= n->high || e->ptr == left_ptr(n, i))
			zoo_fail("entry %d of node %lx is out of order", i, offset_of(n));
		if (n->level)
			c->expected[node_at(e->ptr) - pm->node] = e->key + 1;
		else
			kv_found(c->found, e->key, e->ptr);
		at = e->key + 1;
	}
}

static void verify(void)
{
	struct check c;

	memset(&c, 0, sizeof c);
	walk(check_node, &c);
	kv_verify(&pm->ledger, c.found);
	if (pm->root_lock)
		zoo_fail("the root lock was left held");
}

/* Undoes or completes the operation that a crash cut short in this node. Its stores are those of the operations. */
static void repair_node(struct node *n, uint64_t low, void *arg)
{
	int last = count(n);

	(void)low, (void)arg;
	if (BUG == 11) /* BUG(11): a split or move that a crash cut short is left as it is */
		return;
	/* Linked, but the high key not yet lowered: this node still has everything, so the right half is dropped. */
	if (n->sibling && node_at(n->sibling)->high == n->high) {
		zoo_store(&n->sibling, node_at(n->sibling)->sibling);
		zoo_persist(&n->sibling, 8);
	}
	while (last > 0 && n->e[last - 1].key >= n->high)
		last--;
	if (last < count(n))
		truncate_node(n, last);
	for (int i = last - 1; i >= 0; i--) {
		if (n->e[i].ptr == left_ptr(n, i)) {
			struct entry *e = remove_entry(n, i);

			zoo_persist(e, sizeof *e);
		}
	}
}

static void find_leaf_pairs(struct node *n, uint64_t low, void *arg)
{
	(void)low;
	for (int i = 0; !n->level && i < count(n); i++)
		if (n->e[i].key < n->high)
			kv_found(arg, n->e[i].key, n->e[i].ptr);
}

static void recover(void)
{
	uint64_t found[KV_KEYS] = { 0 };

	walk(repair_node, NULL);
	walk(find_leaf_pairs, found);
	kv_recover(&pm->ledger, found);
	root = node_at(pm->root);
	if (pm->root_lock && BUG != 6) { /* BUG(6): a root lock that was held at the crash stays held */
		zoo_store(&pm->root_lock, 0);
		zoo_persist(&pm->root_lock, 8);
	}
	if (pm->root_lock)
		zoo_fail("the root lock was left held");
	for (uint64_t level = 0; level <= root->level; level++) {
		struct node *n = root;

		while (n->level > level)
			n = node_at(n->leftmost);
		for (; n->sibling; n = node_at(n->sibling))
			insert_parent(level + 1, n->high, node_at(n->sibling));
	}
}

int main(int argc, char **argv)
{
	struct zoo_opts o;
	int fresh;

	zoo_parse(argc, argv, &o);
	pm = zoo_map(o.pool, POOL_SIZE, &fresh);
	for (unsigned i = 0; i < NODES; i++)
		pthread_mutex_init(&side[i].lock, NULL);
	if (pm->magic != MAGIC) {
		zoo_store(&pm->node[0].high, NO_LIMIT);
		zoo_store(&pm->node[0].leftmost, LEAF_MARK);
		zoo_flush(&pm->node[0], ZOO_LINE);
		zoo_store(&pm->root, offset_of(&pm->node[0]));
		zoo_persist(&pm->root, 8);
		zoo_store(&pm->magic, MAGIC);
		zoo_persist(&pm->magic, 8);
	}
	recover();
	verify();
	struct kv_store store = { &pm->ledger, put, get, del };
	kv_workload(&store, &o);
	verify();
	kv_summary("bptree", &o, &pm->ledger);
	return 0;
}
