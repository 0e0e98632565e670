/*
 * A persistent B-tree protected by an undo log. An operation edits copies of the nodes in DRAM; the first
 * edit of an object saves its old contents in the log. The commit makes the log count, writes the edited
 * objects in place and empties the log. Recovery puts back what a log that counts has saved. New nodes
 * need no saving, as nothing refers to them before. Free nodes are those not reachable: that list
 * lives in DRAM, and nodes given up join it only after the commit.
 */
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x6565727462ull
#define POOL_SIZE (256u << 10)
#define T 2u /* a node but the root holds T-1 to 2T-1 keys: small, so that nodes split and merge often */
#define FULL (2 * T - 1)
#define KEYS 40u
#define MAX_DEPTH 8
#define MAX_EDITS 32u

struct node {
	uint32_t n, leaf;
	uint64_t key[FULL];
	uint64_t value[FULL]; /* a function of the key */
	uint64_t child[FULL + 1];
	uint64_t unused[5];
};

struct meta {
	uint64_t root, count;
	uint64_t unused[6];
};

struct saved {
	uint64_t off, len, crc; /* the checksum covers the data, with the offset as its first word */
	_Alignas(ZOO_LINE) uint8_t data[sizeof(struct node)];
};

struct pool {
	_Alignas(ZOO_LINE) uint64_t magic; /* stored last when the pool is made */
	_Alignas(ZOO_LINE) uint64_t logged; /* how many entries of the log count */
	_Alignas(ZOO_LINE) struct meta meta;
	_Alignas(ZOO_LINE) uint64_t path[MAX_DEPTH]; /* unused but for BUG(17) */
	_Alignas(ZOO_LINE) struct saved log[MAX_EDITS];
	_Alignas(ZOO_LINE) struct node nodes[];
};

#define NODES ((POOL_SIZE - sizeof(struct pool)) / sizeof(struct node))
#define META offsetof(struct pool, meta)

/* One object as the running operation sees it. */
struct edit {
	uint64_t off, len;
	int fresh;
	union {
		struct node node;
		struct meta meta;
	};
};

static struct pool *pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct edit edits[MAX_EDITS];
static unsigned nedits, nlog, ngiven;
static uint32_t given_up[MAX_EDITS], free_node[NODES];
static size_t nfree;
static uint64_t hits;
static struct zoo_opts opts;
static int share[] = { 50, 40, 10 }; /* insert, remove, get */

/* The node at an offset read from the pool, which a crash may have made anything. */
static struct node *node_at(uint64_t off)
{
	uint64_t first = offsetof(struct pool, nodes);

	if (off < first || off >= first + NODES * sizeof(struct node) || (off - first) % sizeof(struct node))
		zoo_fail("undo_btree: bad offset %#lx", off);
	return (struct node *)((char *)pool + off);
}

static uint64_t offset_of(uint32_t i)
{
	return offsetof(struct pool, nodes) + i * sizeof(struct node);
}

static uint64_t value_of(uint64_t key)
{
	return zoo_mix(key);
}

static uint32_t saved_crc(uint64_t off, const void *data, uint64_t len)
{
	uint64_t buf[1 + sizeof(struct node) / 8] = { off };

	memcpy(buf + 1, data, len);
	return zoo_crc32(buf, 8 + len);
}

/* Saves the present contents of an object in the log; the commit fences. */
static void save(uint64_t off, uint64_t len)
{
	struct saved *s = &pool->log[nlog];

	if (nlog++ == MAX_EDITS)
		zoo_fail("undo_btree: too many objects saved in one operation");
	if (BUG == 3) { /* BUG(3): the entry counts before it is written */
		zoo_store(&pool->logged, (uint64_t)nlog); /* BLAME(3) */
		zoo_persist(&pool->logged, sizeof pool->logged); /* BLAME(3) */
	}
	s->off = off; /* BLAME(2) */
	s->len = len; /* BLAME(2) */
	s->crc = saved_crc(off, (char *)pool + off, len); /* BLAME(2) */
	zoo_copy(s->data, (char *)pool + off, len); /* BLAME(1, 2) */
	zoo_flush(s, offsetof(struct saved, data)); /* BLAME(2) */
	if (BUG != 1) /* BUG(1): the saved data is not flushed before the log counts */
		zoo_flush(s->data, len); /* BLAME(2) */
}

/* The copy of an object for editing, without saving it: right for fresh nodes only. */
static struct edit *edit_unsaved(uint64_t off, uint64_t len)
{
	struct edit *e = edits;

	while (e < edits + nedits && e->off != off)
		e++;
	if (e == edits + nedits) {
		if (nedits++ == MAX_EDITS)
			zoo_fail("undo_btree: too many edits in one operation");
		*e = (struct edit){ .off = off, .len = len };
		memcpy(&e->node, (char *)pool + off, len);
	}
	return e;
}

static int is_edited(uint64_t off)
{
	for (unsigned i = 0; i < nedits; i++)
		if (edits[i].off == off)
			return 1;
	return 0;
}

static struct edit *edit(uint64_t off, uint64_t len)
{
	if (!is_edited(off))
		save(off, len);
	return edit_unsaved(off, len);
}

static struct node *edit_node(uint64_t off)
{
	return &edit((uint64_t)((char *)node_at(off) - (char *)pool), sizeof(struct node))->node;
}

static struct meta *edit_meta(void)
{
	return &edit(META, sizeof(struct meta))->meta;
}

/* A node to look at: the copy if there is one. */
static const struct node *view(uint64_t off)
{
	for (unsigned i = 0; i < nedits; i++)
		if (edits[i].off == off)
			return &edits[i].node;
	return node_at(off);
}

static struct edit *new_node(int leaf)
{
	uint64_t off = offset_of(free_node[--nfree]);
	struct edit *e;

	if (BUG == 18) /* BUG(18): wiped in the pool, though the commit writes it whole */
		memset(node_at(off), 0, sizeof(struct node)); /* BLAME(18) */
	e = edit_unsaved(off, sizeof(struct node));
	e->fresh = 1;
	e->node = (struct node){ .leaf = (uint32_t)leaf };
	return e;
}

static void give_up(uint64_t off)
{
	given_up[ngiven++] = (uint32_t)(node_at(off) - pool->nodes);
	for (unsigned i = 0; i < nedits; i++)
		if (edits[i].off == off)
			edits[i].len = 0; /* not worth writing */
}

static void set_logged(uint64_t n)
{
	zoo_store(&pool->logged, n); /* BLAME(2, 7, 8, 10) */
	zoo_persist(&pool->logged, sizeof pool->logged);
}

/* For BUG(20): what the thread makes durable when it has released the lock. */
static __thread struct { uint64_t off, len; } late[MAX_EDITS];
static __thread unsigned nlate;

static void finish_late(void)
{
	while (nlate--)
		zoo_flush((char *)pool + late[nlate].off, late[nlate].len);
	nlate = 0;
	zoo_fence();
	set_logged(0);
}

static void commit(void)
{
	if (BUG != 2) /* BUG(2): nothing orders the saved objects before the log counts */
		zoo_fence();
	if (BUG != 3)
		set_logged(nlog); /* BLAME(2) */
	for (unsigned i = 0; i < nedits; i++) {
		struct edit *e = &edits[i];

		zoo_copy((char *)pool + e->off, &e->node, e->len); /* BLAME(6, 7, 8, 9, 11, 18, 19, 20) */
		if (BUG == 20) { /* BUG(20): an operation is made durable, and the log emptied, after the lock is released */
			late[nlate].off = e->off;
			late[nlate++].len = e->len;
			continue;
		}
		if (BUG == 8 || (BUG == 11 && e->fresh)) /* BUG(11): new nodes are not flushed */
			continue;
		if (BUG == 6 && e->len > ZOO_LINE) /* BUG(6): the second line of a node is not flushed */
			e->len = ZOO_LINE;
		zoo_flush((char *)pool + e->off, e->len); /* BLAME(7) */
		if (BUG == 15) /* BUG(15): flushed twice */
			zoo_flush((char *)pool + e->off, e->len); /* BLAME(15) */
	}
	if (BUG == 8) /* BUG(8): the log is emptied before the edited objects are durable */
		set_logged(0); /* BLAME(8) */
	for (unsigned i = 0; BUG == 8 && i < nedits; i++)
		zoo_flush((char *)pool + edits[i].off, edits[i].len);
	if (BUG != 7 && BUG != 20) /* BUG(7): nothing orders the edited objects before the log is emptied */
		zoo_fence();
	if (BUG == 16) /* BUG(16): a second fence with nothing to wait for */
		zoo_fence(); /* BLAME(16) */
	if (BUG != 8 && BUG != 20)
		set_logged(0); /* BLAME(7) */
	while (ngiven)
		free_node[nfree++] = given_up[--ngiven];
	nedits = nlog = 0;
}

/* Moves the upper half of full child i of p into a new node, and the key between up into p. */
static void split(uint64_t p_off, unsigned i)
{
	/* BUG(4): the parent is not saved */
	struct node *p = BUG == 4 ? &edit_unsaved(p_off, sizeof(struct node))->node : edit_node(p_off); /* BLAME(4) */
	struct node *y = edit_node(p->child[i]);
	struct edit *ze = new_node((int)y->leaf);
	struct node *z = &ze->node;

	z->n = T - 1;
	memcpy(z->key, y->key + T, (T - 1) * sizeof z->key[0]);
	memcpy(z->value, y->value + T, (T - 1) * sizeof z->value[0]);
	memcpy(z->child, y->child + T, T * sizeof z->child[0]);
	y->n = T - 1;
	memmove(p->key + i + 1, p->key + i, (p->n - i) * sizeof p->key[0]);
	memmove(p->value + i + 1, p->value + i, (p->n - i) * sizeof p->value[0]);
	memmove(p->child + i + 2, p->child + i + 1, (p->n - i) * sizeof p->child[0]);
	p->key[i] = y->key[T - 1];
	p->value[i] = y->value[T - 1];
	p->child[i + 1] = ze->off;
	p->n++;
}

/* The first slot of x whose key is not less than key. */
static unsigned slot(const struct node *x, uint64_t key)
{
	unsigned i = 0;

	while (i < x->n && x->key[i] < key)
		i++;
	return i;
}

static int lookup(uint64_t key)
{
	uint64_t off = pool->meta.root;

	for (int depth = 0; depth < MAX_DEPTH; depth++) {
		const struct node *x = node_at(off);
		unsigned i = slot(x, key);

		if (BUG == 17) /* BUG(17): the search path, of no use to recovery, is kept in the pool */
			zoo_store(&pool->path[depth], off); /* BLAME(17) */
		if (i < x->n && x->key[i] == key)
			return 1;
		if (x->leaf)
			return 0;
		off = x->child[i];
	}
	zoo_fail("undo_btree: too deep");
}

static void add_to_count(int64_t by)
{
	if (BUG != 12) { /* BUG(12): counted after the commit, outside the log */
		edit_meta()->count += (uint64_t)by;
		commit();
		return;
	}
	commit(); /* BLAME(12) */
	zoo_store(&pool->meta.count, pool->meta.count + (uint64_t)by); /* BLAME(12) */
	zoo_persist(&pool->meta.count, sizeof pool->meta.count);
}

static void insert(uint64_t key)
{
	uint64_t off = pool->meta.root;
	struct node *x;
	unsigned i;

	if (lookup(key) || nfree < MAX_DEPTH)
		return;
	if (view(off)->n == FULL) {
		struct edit *top = new_node(0);

		top->node.child[0] = off;
		off = top->off;
		if (BUG == 13) /* BUG(13): a new root is stored without saving the old one */
			edit_unsaved(META, sizeof(struct meta))->meta.root = off; /* BLAME(13) */
		else
			edit_meta()->root = off;
		split(off, 0);
	}
	while (!view(off)->leaf) {
		i = slot(view(off), key);
		if (view(view(off)->child[i])->n == FULL) {
			split(off, i);
			i = slot(view(off), key);
		}
		off = view(off)->child[i];
	}
	x = edit_node(off);
	i = slot(x, key);
	memmove(x->key + i + 1, x->key + i, (x->n - i) * sizeof x->key[0]);
	memmove(x->value + i + 1, x->value + i, (x->n - i) * sizeof x->value[0]);
	x->key[i] = key;
	x->value[i] = value_of(key);
	x->n++;
	add_to_count(1);
}

/* Takes slot i and the child right of it out of x. */
static void drop_slot(struct node *x, unsigned i)
{
	memmove(x->key + i, x->key + i + 1, (x->n - i - 1) * sizeof x->key[0]);
	memmove(x->value + i, x->value + i + 1, (x->n - i - 1) * sizeof x->value[0]);
	memmove(x->child + i + 1, x->child + i + 2, (x->n - i - 1) * sizeof x->child[0]);
	x->n--;
}

/* Joins children i and i+1 of x, both at the minimum, and the key between them. */
static uint64_t merge(struct node *x, unsigned i)
{
	uint64_t y_off = x->child[i], z_off = x->child[i + 1];
	struct node *y = edit_node(y_off);
	const struct node *z = view(z_off);

	y->key[y->n] = x->key[i];
	y->value[y->n] = x->value[i];
	memcpy(y->key + y->n + 1, z->key, z->n * sizeof z->key[0]);
	memcpy(y->value + y->n + 1, z->value, z->n * sizeof z->value[0]);
	memcpy(y->child + y->n + 1, z->child, (z->n + 1) * sizeof z->child[0]);
	y->n += z->n + 1;
	drop_slot(x, i);
	give_up(z_off);
	return y_off;
}

/* Moves a key from child i-1 of x through x to child i. */
static void borrow_left(struct node *x, unsigned i)
{
	struct node *y, *c = edit_node(x->child[i]);

	if (BUG == 5 && !is_edited(x->child[i - 1])) { /* BUG(5): saves the wrong sibling */
		save(x->child[i], sizeof(struct node)); /* BLAME(5) */
		edit_unsaved(x->child[i - 1], sizeof(struct node)); /* BLAME(5) */
	}
	y = edit_node(x->child[i - 1]);
	memmove(c->key + 1, c->key, c->n * sizeof c->key[0]);
	memmove(c->value + 1, c->value, c->n * sizeof c->value[0]);
	memmove(c->child + 1, c->child, (c->n + 1) * sizeof c->child[0]);
	c->key[0] = x->key[i - 1];
	c->value[0] = x->value[i - 1];
	c->child[0] = y->child[y->n];
	c->n++;
	x->key[i - 1] = y->key[y->n - 1];
	x->value[i - 1] = y->value[y->n - 1];
	y->n--;
}

/* Moves a key from child i+1 of x through x to child i. */
static void borrow_right(struct node *x, unsigned i)
{
	struct node *c = edit_node(x->child[i]), *z = edit_node(x->child[i + 1]);

	c->key[c->n] = x->key[i];
	c->value[c->n] = x->value[i];
	c->child[c->n + 1] = z->child[0];
	c->n++;
	x->key[i] = z->key[0];
	x->value[i] = z->value[0];
	z->child[0] = z->child[1];
	drop_slot(z, 0);
}

/* Takes key out of the subtree at off, whose root has a key to spare (or is the root of the tree). */
static void take_out(uint64_t off, uint64_t key)
{
	for (;;) {
		const struct node *v = view(off);
		unsigned i = slot(v, key);
		struct node *x;

		if (v->leaf) {
			drop_slot(edit_node(off), i);
			return;
		}
		if (i < v->n && v->key[i] == key) {
			unsigned right = view(v->child[i])->n < T;
			uint64_t down = v->child[i + right];
			const struct node *l = view(down);

			x = edit_node(off);
			if (l->n < T) { /* neither side has a key to spare */
				off = merge(x, i);
				continue;
			}
			while (!l->leaf) /* the nearest key below takes the place of this one */
				l = view(l->child[right ? 0 : l->n]);
			key = l->key[right ? 0 : l->n - 1];
			x->key[i] = key;
			x->value[i] = value_of(key);
			off = down;
		}
		/* Make sure that the child on the way has a key to spare. */
		else if (view(v->child[i])->n >= T) {
			off = v->child[i];
		} else {
			x = edit_node(off);
			off = x->child[i];
			if (i > 0 && view(x->child[i - 1])->n >= T)
				borrow_left(x, i);
			else if (i < x->n && view(x->child[i + 1])->n >= T)
				borrow_right(x, i);
			else
				off = merge(x, i < x->n ? i : i - 1);
		}
	}
}

static void remove_key(uint64_t key)
{
	uint64_t root = pool->meta.root;

	if (!lookup(key))
		return;
	take_out(root, key);
	if (view(root)->n == 0 && !view(root)->leaf) {
		edit_meta()->root = view(root)->child[0];
		give_up(root);
	}
	add_to_count(-1);
}

/* Checks the subtree at off, keys in (lo, hi); fails on anything no crash may leave. Returns its depth. */
static int walk(uint64_t off, uint64_t lo, uint64_t hi, int level, uint8_t *used, uint64_t *count, uint64_t *digest)
{
	const struct node *x = node_at(off);
	int depth = 0;

	if (level > MAX_DEPTH || used[x - pool->nodes]++)
		zoo_fail("undo_btree: node %#lx reached twice or too deep", off);
	if (x->n > FULL || x->leaf > 1 || (x->n < T - 1 && !(level == 0 && x->leaf)))
		zoo_fail("undo_btree: bad node %#lx", off);
	for (unsigned i = 0; i <= x->n; i++) {
		uint64_t next = i < x->n ? x->key[i] : hi;

		if (i < x->n && (next <= lo || next >= hi || x->value[i] != value_of(next)))
			zoo_fail("undo_btree: bad key %lu in node %#lx", next, off);
		if (!x->leaf) {
			int d = walk(x->child[i], lo, next, level + 1, used, count, digest);

			if (i > 0 && d != depth)
				zoo_fail("undo_btree: leaves at different depths below %#lx", off);
			depth = d;
		}
		if (i < x->n)
			*digest = zoo_mix(*digest ^ x->value[i]);
		lo = next;
	}
	*count += x->n;
	return depth + 1;
}

static int verify(uint8_t *used, uint64_t *digest)
{
	uint64_t count = 0;
	int depth;

	memset(used, 0, NODES);
	*digest = 0;
	depth = walk(pool->meta.root, 0, KEYS + 1, 0, used, &count, digest);
	if (count != pool->meta.count)
		zoo_fail("undo_btree: %lu keys, counted %lu", count, pool->meta.count);
	return depth;
}

static void create(void)
{
	pool->logged = 0;
	zoo_flush(&pool->logged, sizeof pool->logged);
	pool->nodes[0].n = 0; /* BLAME(14) */
	pool->nodes[0].leaf = 1; /* BLAME(14) */
	if (BUG != 14) /* BUG(14): the first node is not flushed before the magic number */
		zoo_flush(&pool->nodes[0], offsetof(struct node, key));
	pool->meta.root = offset_of(0);
	pool->meta.count = 0;
	zoo_persist(&pool->meta, sizeof pool->meta);
	zoo_store(&pool->magic, MAGIC);
	zoo_persist(&pool->magic, sizeof pool->magic);
}

/* Puts back what the log has saved, if it counts. */
static void recover(void)
{
	uint64_t n = pool->logged;

	if (n == 0)
		return;
	if (n > MAX_EDITS)
		zoo_fail("undo_btree: log of %lu entries", n);
	if (BUG == 10) /* BUG(10): the log is emptied before what it saved is back */
		set_logged(0); /* BLAME(10) */
	for (uint64_t i = n; i-- > 0;) {
		const struct saved *s = &pool->log[i];

		if (BUG == 9 && i + 1 == n) /* BUG(9): the entry saved last is not put back */
			continue;
		if (BUG == 19 && s->off == META) /* BUG(19): only nodes are put back, not the root and the count */
			continue;
		if (s->off != META)
			node_at(s->off);
		if (s->len != (s->off == META ? sizeof(struct meta) : sizeof(struct node)) ||
		    s->crc != saved_crc(s->off, s->data, s->len))
			zoo_fail("undo_btree: log entry %lu counts but is broken", i);
		zoo_copy((char *)pool + s->off, s->data, s->len);
		zoo_flush((char *)pool + s->off, s->len);
	}
	zoo_fence();
	if (BUG != 10)
		set_logged(0);
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
			insert(key);
		else if (op == 1)
			remove_key(key);
		else
			hits += (uint64_t)lookup(key);
		pthread_mutex_unlock(&lock);
		if (nlate)
			finish_late();
	}
}

int main(int argc, char **argv)
{
	static uint8_t used[NODES];
	uint64_t digest;
	int fresh;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 3);
	pool = zoo_map(opts.pool, POOL_SIZE, &fresh);
	if (fresh || pool->magic == 0)
		create();
	else if (pool->magic != MAGIC)
		zoo_fail("undo_btree: not a pool of this program");
	recover();
	verify(used, &digest);
	for (size_t i = NODES; i-- > 0;)
		if (!used[i])
			free_node[nfree++] = (uint32_t)i;
	zoo_threads(opts.threads, worker, NULL);
	int depth = verify(used, &digest);
	printf("undo_btree: %ld ops, %lu keys, depth %d, %lu hits, digest %016lx\n", opts.ops, pool->meta.count, depth,
	       hits, digest);
	return 0;
}
