/*
 * A lock-free queue after Michael and Scott, made durable. A node is persisted before compare-and-swap links it behind
 * the last one; a consumer takes a node by compare-and-swap of its claim word. Links and claims are the queue:
 * where the head and the tail are is only remembered in DRAM. The head in PM moves between rounds, when no thread
 * runs, and then nodes are used again; recovery walks from it, past claimed nodes, to the end.
 *
 * Durable linearizable, because no thread acts on a link or claim that is not persisted: the tail moves over a link, and
 * the head over a claim, only after a persist of it by whoever moves it, owner or helper; new nodes are linked
 * behind the tail only, a node is claimed only if the tail is past the link to it, and the queue is empty only
 * where the head is.
 *
 * The oracle is a line per thread with what it was told: how many items it has enqueued and dequeued, and how many of its
 * own had left the queue when it found the queue empty. Items and claims are numbered by thread, so after a crash
 * each must be there up to the number its thread was told, and may be there for one more, the operation under way.
 */
#include <stdbool.h>
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define POOL_SIZE (256u << 10)
#define MAGIC 0x65756575716676ull
#define THREADS 16
#define NODES 4000u
#define ROUND 2000 /* operations between two trims: no round can run out of nodes */
#define MAX_ITEMS 1500u

struct node {
	_Alignas(ZOO_LINE) uint64_t item; /* (producer + 1) << 40 | number */
	uint64_t check;
	uint64_t claim; /* (consumer + 1) << 40 | number, or 0 */
	uint64_t next;  /* index of a node, or 0 */
};

struct caller {
	_Alignas(ZOO_LINE) uint64_t enqueued, dequeued; /* what the thread was told, a line each */
	uint64_t emptied;                               /* of its own items, those gone when it found the queue empty */
	uint64_t base_enqueued, base_dequeued;          /* counts at the last trim: older nodes may be gone */
};

struct pool {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t head; /* index of a node whose item is no longer in the queue */
	struct caller caller[THREADS];
	struct node node[NODES]; /* node 0 is not used */
};
_Static_assert(sizeof(struct pool) <= POOL_SIZE, "the pool holds its nodes");

static struct pool *pm;
static uint64_t head, tail; /* indexes: hints that a restart finds again */
static uint32_t free_node[NODES];
static int64_t nfree;
static struct zoo_opts opts;
static long round_ops;
static bool drain; /* the queue has grown so long that a round only dequeues */
static int share[] = { 55, 45 }; /* enqueue, dequeue */

static uint64_t tag(uint64_t thread, uint64_t number)
{
	return (thread + 1) << 40 | number;
}

static bool cas(uint64_t *word, uint64_t old, uint64_t new)
{
	return __atomic_compare_exchange_n(word, &old, new, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static struct node *node_at(uint64_t i)
{
	if (i < 1 || i >= NODES)
		zoo_fail("lf_queue: no node %lu", i);
	return &pm->node[i];
}

static uint64_t take_node(void)
{
	int64_t i = __atomic_sub_fetch(&nfree, 1, __ATOMIC_RELAXED);

	if (i < 0)
		zoo_fail("lf_queue: out of nodes");
	return free_node[i];
}

static void enqueue(int id)
{
	struct caller *me = &pm->caller[id];
	uint64_t number = me->enqueued + 1, mine = take_node();
	struct node *n = node_at(mine);

	n->item = tag((uint64_t)id, number); /* BLAME(7) */
	n->check = zoo_mix(n->item); /* BLAME(7) */
	n->claim = 0; /* BLAME(7) */
	n->next = 0; /* BLAME(7) */
	if (BUG != 7) /* BUG(7): a node is linked without having been flushed */
		zoo_persist(n, sizeof *n);
	if (BUG == 10) { /* BUG(10): the caller is told before the node is linked */
		zoo_store(&me->enqueued, number); /* BLAME(10) */
		zoo_persist(&me->enqueued, 8); /* BLAME(10) */
	}
	for (;;) {
		uint64_t last = zoo_load(&tail), next = zoo_load(&node_at(last)->next);

		if (next) {
			if (BUG != 1) /* BUG(1): a helper moves the tail over a link that is not persisted, and links behind it */
				zoo_persist(&node_at(last)->next, 8);
			cas(&tail, last, next); /* BLAME(1) */
		} else if (cas(&node_at(last)->next, 0, mine)) { /* BLAME(1, 2, 3) */
			if (BUG == 2) /* BUG(2): the tail is moved over a new link before the link is persisted */
				cas(&tail, last, mine); /* BLAME(2) */
			zoo_persist(&node_at(last)->next, 8);
			cas(&tail, last, mine);
			break;
		}
	}
	if (BUG != 10) {
		zoo_store(&me->enqueued, number);
		zoo_persist(&me->enqueued, 8);
	}
}

static void report_empty(struct caller *me)
{
	if (me->emptied != me->enqueued) {
		zoo_store(&me->emptied, me->enqueued);
		zoo_persist(&me->emptied, 8);
	}
}

static void dequeue(int id)
{
	struct caller *me = &pm->caller[id];
	uint64_t mine = tag((uint64_t)id, me->dequeued + 1);

	for (;;) {
		uint64_t first = zoo_load(&head), last = zoo_load(&tail), next = zoo_load(&node_at(first)->next);

		if (!next) {
			report_empty(me);
			return;
		}
		if (first == last && BUG != 3) { /* BUG(3): a node is claimed though the link to it is not persisted */
			zoo_persist(&node_at(first)->next, 8);
			cas(&tail, last, next);
			continue;
		}
		struct node *n = node_at(next);
		if (BUG == 12) /* BUG(12): a consumer flushes a link that is persisted already */
			zoo_persist(&node_at(first)->next, 8); /* BLAME(12) */
		if (BUG == 6 && zoo_load(&n->claim) && !zoo_load(&n->next)) {
			report_empty(me); /* BUG(6): the queue is called empty on the strength of a claim that is not persisted */
			return;
		}
		if (cas(&n->claim, 0, mine)) { /* BLAME(3, 4, 5, 6, 11) */
			if (n->check != zoo_mix(n->item))
				zoo_fail("lf_queue: node %lu holds no item", next);
			if (BUG == 5) /* BUG(5): the head is moved over a new claim before the claim is persisted */
				cas(&head, first, next); /* BLAME(5) */
			zoo_persist(&n->claim, 8);
			cas(&head, first, next);
			zoo_store(&me->dequeued, me->dequeued + 1);
			zoo_persist(&me->dequeued, 8);
			return;
		}
		if (BUG != 4) /* BUG(4): a helper moves the head over a claim that is not persisted, and claims behind it */
			zoo_persist(&n->claim, 8);
		cas(&head, first, next); /* BLAME(4) */
	}
}

/* What the walk from the head found of a thread's items and claims. */
struct tally {
	uint64_t items[THREADS], claims[THREADS]; /* the highest number, 0 if none */
	uint64_t waiting[THREADS];                /* the lowest number of an item not claimed */
	uint64_t length, unclaimed;               /* nodes behind the head, and those of them that wait */
	uint64_t last, claimed;                   /* the last node, the last claimed one */
};

/* Fails unless the numbers of a thread that are above its base come without a gap. */
static uint64_t next_number(const char *what, uint64_t word, const uint64_t *seen, uint64_t base)
{
	uint64_t thread = (word >> 40) - 1, number = word & ((1ull << 40) - 1);

	if (thread >= THREADS || !number)
		zoo_fail("an %s of no thread: %lx", what, word);
	if (seen[thread] ? number != seen[thread] + 1 : number > base + 1)
		zoo_fail("%s %lu of thread %lu comes after %lu", what, number, thread, seen[thread] ? seen[thread] : base);
	return number;
}

static void walk(struct tally *t)
{
	memset(t, 0, sizeof *t);
	t->last = t->claimed = pm->head;
	for (uint64_t i = node_at(pm->head)->next; i; i = node_at(i)->next) {
		struct node *n = node_at(i);
		uint64_t p = (n->item >> 40) - 1, c = (n->claim >> 40) - 1;

		if (++t->length >= NODES || n->check != zoo_mix(n->item) || p >= THREADS)
			zoo_fail("node %lu is damaged, or the queue is a circle", i);
		t->items[p] = next_number("item", n->item, t->items, pm->caller[p].base_enqueued);
		t->unclaimed += !n->claim;
		if (!n->claim && !t->waiting[p])
			t->waiting[p] = t->items[p];
		if (n->claim && (c >= THREADS || t->claimed != t->last))
			zoo_fail("node %lu was taken out of turn", i);
		if (n->claim) {
			t->claims[c] = next_number("claim", n->claim, t->claims, pm->caller[c].base_dequeued);
			t->claimed = i;
		}
		t->last = i;
	}
}

/* Every thread's items and claims reach as far as it was told, and at most one operation further. */
static void check(const struct tally *t, uint64_t slack)
{
	uint64_t waiting = 0;

	for (int i = 0; i < THREADS; i++) {
		const struct caller *c = &pm->caller[i];
		uint64_t items = t->items[i] > c->base_enqueued ? t->items[i] : c->base_enqueued;
		uint64_t claims = t->claims[i] > c->base_dequeued ? t->claims[i] : c->base_dequeued;

		if (items < c->enqueued || items > c->enqueued + slack)
			zoo_fail("thread %d was told of %lu items enqueued, there are %lu", i, c->enqueued, items);
		if (claims < c->dequeued || claims > c->dequeued + slack)
			zoo_fail("thread %d was told of %lu items dequeued, there are %lu", i, c->dequeued, claims);
		if (t->waiting[i] && t->waiting[i] <= c->emptied)
			zoo_fail("thread %d found the queue empty, now its item %lu is back", i, t->waiting[i]);
		waiting += items - claims;
	}
	if (waiting != t->unclaimed)
		zoo_fail("%lu items should wait, there are %lu", waiting, t->unclaimed);
}

/* Moves the head past all claimed nodes and collects what it cannot reach. No other thread runs. */
static void trim(const struct tally *t)
{
	static bool reachable[NODES];
	uint64_t steps = 0;

	/* Bases first: a thread may then miss nodes below its base, but never nodes above it. */
	if (t->claimed != pm->head) {
		if (BUG == 9) { /* BUG(9): the head moves before the counts that allow for it */
			zoo_store(&pm->head, t->claimed); /* BLAME(9) */
			zoo_persist(&pm->head, 8); /* BLAME(9) */
		}
		for (int i = 0; i < THREADS; i++) {
			struct caller *c = &pm->caller[i];

			if (c->base_enqueued == c->enqueued && c->base_dequeued == c->dequeued)
				continue;
			zoo_store(&c->base_enqueued, c->enqueued); /* BLAME(8) */
			zoo_store(&c->base_dequeued, c->dequeued); /* BLAME(8) */
			zoo_flush(&c->base_enqueued, 16); /* BLAME(8) */
		}
		if (BUG != 8) /* BUG(8): no fence between the flush of the counts and the move of the head */
			zoo_fence();
		if (BUG != 9) {
			zoo_store(&pm->head, t->claimed); /* BLAME(8) */
			zoo_persist(&pm->head, 8);
		}
	}
	head = pm->head;
	tail = t->last;
	memset(reachable, 0, sizeof reachable);
	for (uint64_t i = head; i && steps++ < NODES; i = node_at(i)->next)
		reachable[i] = true;
	nfree = 0;
	for (uint32_t i = NODES - 1; i > 0; i--)
		if (!reachable[i])
			free_node[nfree++] = i;
}

/* Completes what a crash cut short: an operation whose link or claim is durable has happened. */
static void recover(void)
{
	struct tally t;

	walk(&t);
	check(&t, 1);
	for (int i = 0; i < THREADS; i++) {
		struct caller *c = &pm->caller[i];
		bool enqueued = t.items[i] > c->enqueued, dequeued = t.claims[i] > c->dequeued;

		if (BUG == 11) /* BUG(11): a claim made durable by an operation under way is not counted */
			dequeued = false;
		if (enqueued) {
			zoo_store(&c->enqueued, t.items[i]);
			zoo_flush(&c->enqueued, 8);
		}
		if (dequeued) {
			zoo_store(&c->dequeued, t.claims[i]);
			zoo_flush(&c->dequeued, 8);
		}
		if (enqueued || dequeued)
			zoo_fence();
	}
	trim(&t);
}

static uint64_t verify(void)
{
	struct tally t;

	walk(&t);
	check(&t, 0);
	trim(&t);
	walk(&t);
	check(&t, 0);
	return t.length;
}

static void worker(int id, void *arg)
{
	uint64_t rng = zoo_mix(opts.seed + (uint64_t)id + 1 + *(uint64_t *)arg * 1000);

	for (long i = zoo_share(round_ops, opts.threads, id); i > 0; i--) {
		if (zoo_pick(&rng, share, 2) == 0 && !drain)
			enqueue(id);
		else
			dequeue(id);
	}
}

int main(int argc, char **argv)
{
	int fresh;
	uint64_t length;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 2);
	if (opts.threads > THREADS)
		zoo_fail("at most %d threads", THREADS);
	pm = zoo_map(opts.pool, POOL_SIZE, &fresh);
	if (pm->magic != MAGIC) {
		zoo_store(&pm->head, 1);
		zoo_persist(&pm->head, 8);
		zoo_store(&pm->magic, MAGIC);
		zoo_persist(&pm->magic, 8);
	}
	recover();
	length = verify();
	long left = opts.ops;
	for (uint64_t round = 0; left > 0; round++) {
		round_ops = left < ROUND ? left : ROUND;
		drain = length > MAX_ITEMS;
		zoo_threads(opts.threads, worker, &round);
		left -= round_ops;
		length = verify();
	}
	printf("lf_queue: %ld operations, %lu items wait\n", opts.ops, length);
	return 0;
}
