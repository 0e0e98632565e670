/*
 * A persistent array with a redo log. A transaction moves amounts between a few cells, so the sum of the
 * array never changes. It writes the new contents of its cells to the log (past the cache), then a commit
 * word, then the cells themselves, and at last the word that says the log is applied. Recovery replays
 * a log that is committed but not applied; replaying twice does no harm, as the log holds values.
 */
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x79617272616f6472ull
#define POOL_SIZE (256u << 10)
#define CELLS 128u
#define START 1000 /* what each cell holds at first */
#define MAX_TX 6u

struct cell {
	int64_t value;
	uint64_t txid; /* the transaction that wrote it */
};

struct entry {
	uint64_t cell;
	int64_t value;
};

struct log {
	_Alignas(ZOO_LINE) uint64_t txid;
	uint64_t n;
	uint64_t crc; /* of the two words above and the n entries */
	_Alignas(ZOO_LINE) struct entry entry[MAX_TX];
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;     /* stored last when the pool is made */
	_Alignas(ZOO_LINE) uint64_t committed; /* number of the last transaction whose log is complete */
	_Alignas(ZOO_LINE) uint64_t applied;   /* and of the last one whose cells are durable */
	_Alignas(ZOO_LINE) struct log log;
	_Alignas(ZOO_LINE) int64_t scratch[MAX_TX]; /* unused but for BUG(16) */
	_Alignas(ZOO_LINE) struct cell cell[CELLS];
};

_Static_assert(sizeof(struct root) <= POOL_SIZE, "the pool holds the root");

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread uint64_t *late; /* for some bugs: what the thread persists when it has released the lock */
static struct zoo_opts opts;
static int share[] = { 90, 10 }; /* transfer, read */

static uint32_t log_crc(uint64_t txid, const struct entry *e, uint64_t n)
{
	uint64_t buf[2 + 2 * MAX_TX] = { txid, n };

	memcpy(buf + 2, e, n * sizeof *e);
	return zoo_crc32(buf, 2 * sizeof buf[0] + n * sizeof *e);
}

/* Tells whether the log is whole and belongs to transaction txid. */
static int log_valid(uint64_t txid)
{
	const struct log *l = &root->log;

	if (l->txid != txid || l->n < 1 || l->n > MAX_TX || l->crc != log_crc(txid, l->entry, l->n))
		return 0;
	for (uint64_t i = 0; i < l->n; i++)
		if (l->entry[i].cell >= CELLS)
			return 0;
	return 1;
}

static void write_log(uint64_t txid, const struct entry *e, uint64_t n)
{
	struct log *l = &root->log;

	zoo_copy_nt(l->entry, e, n * sizeof *e); /* BLAME(2) */
	if (BUG == 14) /* BUG(14): flushes lines that were written past the cache */
		zoo_flush(l->entry, n * sizeof *e); /* BLAME(14) */
	l->txid = txid; /* BLAME(1, 2) */
	l->n = n; /* BLAME(1, 2) */
	l->crc = log_crc(txid, e, n); /* BLAME(1, 2) */
	if (BUG != 1) /* BUG(1): the head of the log is not flushed before the commit */
		zoo_flush(l, offsetof(struct log, entry)); /* BLAME(2) */
	if (BUG != 2) /* BUG(2): nothing orders the log before the commit */
		zoo_fence();
}

static void commit(uint64_t txid)
{
	zoo_store(&root->committed, txid); /* BLAME(2, 3, 8, 9, 19) */
	if (BUG == 19) { /* BUG(19): the commit is persisted after the lock is released */
		late = &root->committed;
		return;
	}
	zoo_persist(&root->committed, sizeof root->committed);
}

/* Writes the cells and flushes each line that holds any of them once. */
static void write_cells(uint64_t txid, const struct entry *e, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		root->cell[e[i].cell].txid = txid; /* BLAME(4, 5) */
		zoo_store(&root->cell[e[i].cell].value, e[i].value); /* BLAME(4, 5, 17) */
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t per_line = ZOO_LINE / sizeof(struct cell), j = 0;

		while (e[j].cell / per_line != e[i].cell / per_line)
			j++;
		if (j == i && BUG != 4) /* BUG(4): the cells are not flushed before the log is given up */
			zoo_flush(&root->cell[e[i].cell], sizeof(struct cell)); /* BLAME(5) */
	}
	if (BUG != 5) /* BUG(5): nothing orders the cells before the word that gives up the log */
		zoo_fence();
	if (BUG == 15) /* BUG(15): a second fence with nothing to wait for */
		zoo_fence(); /* BLAME(15) */
}

static void set_applied(uint64_t txid)
{
	zoo_store(&root->applied, txid); /* BLAME(5, 6, 10, 11) */
	if (BUG != 11) /* BUG(11): never flushed, so the next transaction overwrites a log still in force */
		zoo_persist(&root->applied, sizeof root->applied);
}

static void create(void)
{
	if (BUG == 13) { /* BUG(13): the pool is declared valid before it is */
		zoo_store(&root->magic, MAGIC); /* BLAME(13) */
		zoo_persist(&root->magic, sizeof root->magic); /* BLAME(13) */
	}
	root->committed = 0;
	root->applied = 0;
	zoo_flush(&root->committed, sizeof root->committed);
	zoo_flush(&root->applied, sizeof root->applied);
	for (unsigned i = 0; i < CELLS; i++) {
		root->cell[i].value = START; /* BLAME(12) */
		root->cell[i].txid = 0; /* BLAME(12) */
	}
	if (BUG != 12) /* BUG(12): the cells are not flushed before the magic number */
		zoo_flush(root->cell, sizeof root->cell);
	zoo_fence();
	if (BUG != 13) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
}

static void recover(void)
{
	uint64_t txid = root->committed, n = root->log.n;

	if (txid == root->applied)
		return;
	if (txid != root->applied + 1)
		zoo_fail("redo_array: committed %lu, applied %lu", txid, root->applied);
	if (!log_valid(txid))
		zoo_fail("redo_array: the log of transaction %lu is committed but broken", txid);
	if (BUG == 8) /* BUG(8): the last entry is not replayed */
		n--;
	if (BUG == 10) /* BUG(10): gives up the log before the cells are durable */
		set_applied(txid); /* BLAME(10) */
	if (BUG != 9) /* BUG(9): the log is given up without replaying it */
		write_cells(txid, root->log.entry, n);
	if (BUG != 10)
		set_applied(txid);
}

static void verify(uint64_t *digest)
{
	const struct log *l = &root->log;
	int64_t sum = 0;

	*digest = 0;
	if (root->committed != root->applied)
		zoo_fail("redo_array: committed %lu, applied %lu", root->committed, root->applied);
	for (unsigned i = 0; i < CELLS; i++) {
		if (root->cell[i].value < 0 || root->cell[i].value > START * (int64_t)CELLS || root->cell[i].txid > root->applied)
			zoo_fail("redo_array: cell %u holds %ld by transaction %lu", i, root->cell[i].value, root->cell[i].txid);
		sum += root->cell[i].value;
		*digest = zoo_mix(*digest ^ (uint64_t)root->cell[i].value);
	}
	if (sum != START * (int64_t)CELLS)
		zoo_fail("redo_array: the sum is %ld, not %ld", sum, START * (int64_t)CELLS);
	if (root->applied == 0 || !log_valid(root->applied))
		return; /* no transaction yet, or the next one was writing its log */
	for (uint64_t i = 0; i < l->n; i++)
		if (root->cell[l->entry[i].cell].value != l->entry[i].value)
			zoo_fail("redo_array: cell %lu lost transaction %lu", l->entry[i].cell, root->applied);
}

static void run_tx(const struct entry *e, uint64_t n)
{
	uint64_t txid = root->committed + 1;

	if (BUG == 7 && n == 2) { /* BUG(7): a transfer between two cells goes without the log */
		for (unsigned i = 0; i < 2; i++) {
			zoo_store(&root->cell[e[i].cell].value, e[i].value); /* BLAME(7) */
			zoo_persist(&root->cell[e[i].cell], sizeof(struct cell)); /* BLAME(7) */
		}
		commit(txid);
		set_applied(txid);
		return;
	}
	if (BUG == 18 && n > 4) { /* BUG(18): a long transaction is committed in two parts */
		run_tx(e, 3); /* BLAME(18) */
		run_tx(e + 3, n - 3); /* BLAME(18) */
		return;
	}
	if (BUG == 3) /* BUG(3): the commit comes before the log */
		commit(txid); /* BLAME(3) */
	write_log(txid, e, n);
	if (BUG != 3)
		commit(txid); /* BLAME(2) */
	if (BUG == 6) /* BUG(6): the log is given up before the cells are written */
		set_applied(txid); /* BLAME(6) */
	if (BUG == 17) { /* BUG(17): the credit is added up in the pool, debit by debit */
		int64_t *credit = &root->cell[e[n - 1].cell].value;

		for (uint64_t i = 0; i < n - 1; i++)
			zoo_store(credit, *credit + root->cell[e[i].cell].value - e[i].value); /* BLAME(17) */
	}
	write_cells(txid, e, n);
	if (BUG != 6)
		set_applied(txid); /* BLAME(5) */
}

/* Moves amounts from all but the last of a few distinct cells to the last one. */
static void transfer(uint64_t *rng)
{
	struct entry e[MAX_TX];
	uint64_t n = 2 + zoo_rand(rng) % (MAX_TX - 1), first = zoo_rand(rng) % CELLS, step = zoo_rand(rng) % 20 + 1;
	int64_t moved = 0;

	for (uint64_t i = 0; i < n; i++) {
		e[i].cell = (first + i * step) % CELLS;
		e[i].value = root->cell[e[i].cell].value;
		if (i < n - 1) {
			int64_t amount = (int64_t)(zoo_rand(rng) % ((uint64_t)e[i].value + 1));

			e[i].value -= amount;
			moved += amount;
		}
		if (BUG == 16) /* BUG(16): working values are kept in the pool, though no recovery reads them */
			zoo_store(&root->scratch[i], e[i].value); /* BLAME(16) */
	}
	e[n - 1].value += moved;
	run_tx(e, n);
}

static void read_cell(uint64_t *rng)
{
	uint64_t i = zoo_rand(rng) % CELLS;

	if (root->cell[i].value < 0)
		zoo_fail("redo_array: cell %lu holds %ld", i, root->cell[i].value);
}

static void worker(int id, void *arg)
{
	uint64_t rng = opts.seed ^ zoo_mix((uint64_t)id + 1);

	(void)arg;
	for (long i = zoo_share(opts.ops, opts.threads, id); i > 0; i--) {
		int op = zoo_pick(&rng, share, 2);

		pthread_mutex_lock(&lock);
		if (op == 0)
			transfer(&rng);
		else
			read_cell(&rng);
		pthread_mutex_unlock(&lock);
		if (late) {
			zoo_persist(late, sizeof *late);
			late = NULL;
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t digest;
	int fresh;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 2);
	root = zoo_map(opts.pool, POOL_SIZE, &fresh);
	if (fresh || root->magic == 0)
		create();
	else if (root->magic != MAGIC)
		zoo_fail("redo_array: not a pool of this program");
	recover();
	verify(&digest);
	zoo_threads(opts.threads, worker, NULL);
	verify(&digest);
	printf("redo_array: %ld ops, digest %016lx\n", opts.ops, digest);
	return 0;
}
