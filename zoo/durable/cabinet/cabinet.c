/*
 * Files in a cabinet, with libpmemobj's transactions: `add NAME PAGES SHEETS`, `set NAME PAGES SHEETS`, `swap NAME NAME` (of what
 * both hold), `del NAME`. Each operation is one transaction, which keeps the number of files, too.
 */
#include <libpmemobj.h>
#include <stdint.h>
#include <unistd.h>

#include "lines.h"

/* TX_BEGIN hides a setjmp. Nothing here looks at what a transaction that aborts has changed. */
#pragma GCC diagnostic ignored "-Wclobbered"

#ifndef BUG
#define BUG 0
#endif

#define LAYOUT "cabinet"

POBJ_LAYOUT_BEGIN(cabinet);
POBJ_LAYOUT_ROOT(cabinet, struct root);
POBJ_LAYOUT_TOID(cabinet, struct file);
POBJ_LAYOUT_END(cabinet);

/* What a file holds. Both words are in one line of the cache: objects are aligned to 16 bytes. */
struct held {
	uint64_t pages, sheets;
};

struct file {
	TOID(struct file) next;
	struct held held;
	uint64_t name;
	uint64_t unused;
};

struct root {
	TOID(struct file) first;
	uint64_t count;
};

static PMEMobjpool *pop;
static TOID(struct root) root;

/* Finds a file, and in *link what refers to it. */
static TOID(struct file) find(uint64_t name, TOID(struct file) **link)
{
	*link = &D_RW(root)->first;
	while (!TOID_IS_NULL(**link) && D_RO(**link)->name != name)
		*link = &D_RW(**link)->next;
	return **link;
}

static void count(int change)
{
	TX_BEGIN(pop) {
		TX_ADD_FIELD(root, count); /* BLAME(2) */
		D_RW(root)->count += (uint64_t)change; /* BLAME(2) */
	} TX_END
}

static int add(uint64_t name, struct held held)
{
	TOID(struct file) *link, file = find(name, &link);

	if (!TOID_IS_NULL(file))
		return 0;
	TX_BEGIN(pop) {
		file = TX_ZNEW(struct file);
		D_RW(file)->name = name;
		D_RW(file)->held = held;
		D_RW(file)->next = D_RO(root)->first;
		TX_ADD_FIELD(root, first);
		D_RW(root)->first = file; /* BLAME(2) */
		if (BUG != 2)
			count(1);
	} TX_ONABORT { /* BLAME(2) */
		return 0;
	} TX_END /* BLAME(2) */
	if (BUG == 2) /* BUG(2): the file is counted in a transaction of its own */
		count(1); /* BLAME(2) */
	return 1;
}

static int set(uint64_t name, struct held held)
{
	TOID(struct file) *link, file = find(name, &link);

	if (TOID_IS_NULL(file))
		return 0;
	TX_BEGIN(pop) {
		TX_ADD_FIELD(file, held.pages); /* BLAME(1) */
		D_RW(file)->held.pages = held.pages; /* BLAME(1) */
		if (BUG != 1) /* BUG(1): the other field is changed without a copy in the log */
			TX_ADD_FIELD(file, held.sheets);
		D_RW(file)->held.sheets = held.sheets; /* BLAME(1) */
	} TX_END /* BLAME(1) */
	return 1;
}

static void assign(TOID(struct file) file, struct held held)
{
	TX_BEGIN(pop) {
		TX_ADD_FIELD(file, held);
		D_RW(file)->held = held; /* BLAME(3) */
	} TX_END /* BLAME(3) */
}

static int swap(uint64_t one, uint64_t other)
{
	TOID(struct file) *link, a = find(one, &link), b = find(other, &link);
	struct held held;

	if (TOID_IS_NULL(a) || TOID_IS_NULL(b))
		return 0;
	held = D_RO(a)->held;
	if (BUG == 3) { /* BUG(3): two transactions, not one around both */
		assign(a, D_RO(b)->held); /* BLAME(3) */
		assign(b, held); /* BLAME(3) */
		return 1;
	}
	TX_BEGIN(pop) {
		assign(a, D_RO(b)->held);
		assign(b, held);
	} TX_END
	return 1;
}

static int take_out(uint64_t name)
{
	TOID(struct file) *link, file = find(name, &link);

	if (TOID_IS_NULL(file))
		return 0;
	TX_BEGIN(pop) {
		pmemobj_tx_add_range_direct(link, sizeof *link);
		*link = D_RO(file)->next; /* BLAME(2) */
		TX_FREE(file);
		if (BUG != 2)
			count(-1);
	} TX_END /* BLAME(2) */
	if (BUG == 2)
		count(-1); /* BLAME(2) */
	return 1;
}

static void dump(void)
{
	uint64_t files = 0;

	for (TOID(struct file) f = D_RO(root)->first; !TOID_IS_NULL(f); f = D_RO(f)->next, files++) {
		lines_item("%.8s.pages %lu", (const char *)&D_RO(f)->name, D_RO(f)->held.pages);
		lines_item("%.8s.sheets %lu", (const char *)&D_RO(f)->name, D_RO(f)->held.sheets);
	}
	lines_item("files: %lu, counted: %lu", files, D_RO(root)->count);
	lines_print();
}

int main(int argc, char **argv)
{
	int wants_dump = lines_want_dump(argc, argv);
	char *line, a[9], b[9];
	struct held held;

	pop = pmemobj_open(argv[1], LAYOUT);
	if (!pop) {
		/* None yet, or one that a crash left half made. */
		unlink(argv[1]);
		pop = pmemobj_create(argv[1], LAYOUT, PMEMOBJ_MIN_POOL, 0644);
	}
	if (!pop) {
		perror(argv[1]);
		return 1;
	}
	root = POBJ_ROOT(pop, struct root);
	if (wants_dump)
		dump();
	while (!wants_dump && (line = lines_next())) {
		int done = 0;

		if (sscanf(line, "add %8s %lu %lu", a, &held.pages, &held.sheets) == 3)
			done = add(lines_word(a), held);
		else if (sscanf(line, "set %8s %lu %lu", a, &held.pages, &held.sheets) == 3)
			done = set(lines_word(a), held);
		else if (sscanf(line, "swap %8s %8s", a, b) == 2)
			done = swap(lines_word(a), lines_word(b));
		else if (sscanf(line, "del %8s", a) == 1)
			done = take_out(lines_word(a));
		lines_answer(done ? "ok" : "refused");
	}
	pmemobj_close(pop);
	return 0;
}
