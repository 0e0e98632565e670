/*
 * A ledger in a pool of libpmemobj: a list of entries with its length and sum, accounts between which an amount moves, a label that is a
 * number or a text, and an object that is made outside of transactions. All but the last change in transactions.
 *
 * The operations come in turn, so that few of them reach everything. What a crash leaves of a pool that was being made is made anew.
 */
#include "zoo.h"
#include <libpmemobj.h>

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x7265646765ul
#define ACCOUNTS 4
#define TOTAL 1000

struct account {
	uint64_t amount;
	uint64_t check;     /* amount ^ MAGIC */
};

struct entry {
	uint64_t value;
	uint64_t check;     /* value ^ MAGIC */
	PMEMoid next;
};

/* Made outside of transactions: complete as soon as the ledger refers to it. */
struct seal {
	uint64_t mark;
	uint64_t pad[15];
	uint64_t check;     /* mark ^ MAGIC, on another line */
};

/* What changes by itself has a line of its own, so that no flush of its neighbours persists it by chance. */
struct ledger {
	uint64_t magic;
	uint64_t visits;
	uint64_t pad0[6];
	uint64_t count;
	uint64_t pad1[7];
	uint64_t sum;
	uint64_t pad2[7];
	PMEMoid head;
	uint64_t pad3[6];
	struct account accounts[ACCOUNTS];
	uint64_t kind;      /* of the label: a number or a text */
	union {
		uint64_t number;
		char text[16];
	} label;
	uint64_t pad4[5];
	PMEMoid seal;
};

POBJ_LAYOUT_BEGIN(ledger);
POBJ_LAYOUT_ROOT(ledger, struct ledger);
POBJ_LAYOUT_TOID(ledger, struct entry);
POBJ_LAYOUT_TOID(ledger, struct seal);
POBJ_LAYOUT_END(ledger);

#define OPERATIONS 11

static struct zoo_opts opts;
/* An operation with a share of 0 is left out. */
static int share[OPERATIONS] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
static PMEMobjpool *pop;
static TOID(struct ledger) r;

static TOID(struct entry) entry_at(PMEMoid oid)
{
	TOID(struct entry) e;

	TOID_ASSIGN(e, oid);
	return e;
}

/* A transaction must not fail here. */
static void aborted(void)
{
	zoo_fail("obj_ledger: a transaction was aborted: %s", pmemobj_errormsg());
}

static void push(uint64_t value)
{
	TX_BEGIN(pop) {
		TOID(struct entry) e = TX_NEW(struct entry);

		if (BUG == 18)
			TX_ADD(e); /* BUG(18): just allocated */
		D_RW(e)->value = value;
		D_RW(e)->check = value ^ MAGIC;
		D_RW(e)->next = D_RO(r)->head;
		if (BUG != 2)
			TX_ADD_FIELD(r, head); /* BUG(2): the head of the list is not added */
		D_RW(r)->head = e.oid; /* BLAME(2) */
		if (BUG != 1 && BUG != 9 && BUG != 20)
			TX_ADD_FIELD(r, count); /* BUG(1): the length is not added */
		D_RW(r)->count++; /* BLAME(1, 9, 20) */
		if (BUG == 9)
			TX_ADD_FIELD(r, count); /* BUG(9): added when it has been changed */
		if (BUG == 17)
			TX_ADD_FIELD(r, count); /* BUG(17): added before */
		if (BUG == 19 || BUG == 20)
			/* BUG(19): the commit does that */
			pmemobj_persist(pop, &D_RW(r)->count, 8); /* BUG(20): persistent before the commit, and not added */
		TX_ADD_FIELD(r, sum);
		D_RW(r)->sum += value;
	} TX_ONABORT {
		aborted();
	} TX_END
}

static void pop_entry(void)
{
	TOID(struct entry) e = entry_at(D_RO(r)->head);

	if (TOID_IS_NULL(e))
		return;
	TX_BEGIN(pop) {
		TX_ADD(e);
		TX_ADD_FIELD(r, head);
		D_RW(r)->head = D_RO(e)->next;
		TX_ADD_FIELD(r, count);
		D_RW(r)->count--;
		if (BUG != 3)
			TX_ADD_FIELD(r, sum); /* BUG(3): the sum is not added */
		D_RW(r)->sum -= D_RO(e)->value; /* BLAME(3) */
		/* Whoever still refers to it is to notice. */
		if (BUG != 12)
			D_RW(e)->check = 0;
		TX_FREE(e);
		if (BUG == 12)
			D_RW(e)->check = 0; /* BUG(12): freed already */
	} TX_ONABORT {
		aborted();
	} TX_END
}

/* Gives the first entry another value. */
static void change(uint64_t value)
{
	TOID(struct entry) e = entry_at(D_RO(r)->head);

	if (TOID_IS_NULL(e))
		return;
	TX_BEGIN(pop) {
		TX_ADD_FIELD(r, sum);
		D_RW(r)->sum += value - D_RO(e)->value;
		if (BUG != 6)
			TX_ADD(e); /* BUG(6): the entry is not added */
		D_RW(e)->value = value; /* BLAME(6) */
		D_RW(e)->check = value ^ MAGIC; /* BLAME(6) */
	} TX_ONABORT {
		aborted();
	} TX_END
}

/* The same by a copy of the whole entry. */
static void replace(uint64_t value)
{
	TOID(struct entry) e = entry_at(D_RO(r)->head);

	if (TOID_IS_NULL(e))
		return;
	struct entry fresh = { .value = value, .check = value ^ MAGIC, .next = D_RO(e)->next };

	TX_BEGIN(pop) {
		TX_ADD_FIELD(r, sum);
		D_RW(r)->sum += value - D_RO(e)->value;
		if (BUG != 7)
			TX_ADD(e); /* BUG(7): the entry is not added */
		*D_RW(e) = fresh; /* BLAME(7) */
	} TX_ONABORT {
		aborted();
	} TX_END
}

/* A transaction of its own, or a part of the caller's. */
static void credit(uint64_t i, uint64_t amount)
{
	TX_BEGIN(pop) {
		if (BUG != 11)
			TX_ADD_FIELD(r, accounts[i]); /* BUG(11): the caller has added another account */
		D_RW(r)->accounts[i].amount += amount; /* BLAME(11) */
		D_RW(r)->accounts[i].check = D_RO(r)->accounts[i].amount ^ MAGIC; /* BLAME(11) */
	} TX_ONABORT {
		aborted();
	} TX_END
}

static void move(uint64_t from, uint64_t to, uint64_t amount)
{
	TX_BEGIN(pop) {
		if (BUG == 5)
			pmemobj_tx_add_range_direct(&D_RW(r)->accounts[from], 8); /* BUG(5): too short */
		else if (BUG != 4)
			TX_ADD_FIELD(r, accounts[from]); /* BUG(4): the account is not added */
		D_RW(r)->accounts[from].amount -= amount; /* BLAME(4) */
		D_RW(r)->accounts[from].check = D_RO(r)->accounts[from].amount ^ MAGIC; /* BLAME(4, 5) */
		credit(to, amount);
	} TX_ONABORT {
		aborted();
	} TX_END
}

static void label(uint64_t i)
{
	char text[16] = { 0 };

	snprintf(text, sizeof(text), "text %04lu text", i % 10000);
	TX_BEGIN(pop) {
		TX_ADD_FIELD(r, kind);
		if (BUG != 8)
			TX_ADD_FIELD(r, label); /* BUG(8): the label is not added */
		if (D_RO(r)->kind == 0) {
			D_RW(r)->kind = 1;
			memcpy(D_RW(r)->label.text, text, sizeof(text)); /* BLAME(8) */
		} else {
			D_RW(r)->kind = 0;
			D_RW(r)->label.number = i % 1000; /* BLAME(8) */
		}
	} TX_ONABORT {
		aborted();
	} TX_END
}

/* Begins something and thinks better of it. */
static void regret(void)
{
	TX_BEGIN(pop) {
		if (BUG != 10)
			TX_ADD_FIELD(r, count); /* BUG(10): not added, but taken back by hand */
		D_RW(r)->count += 1; /* BLAME(10) */
		pmemobj_tx_abort(ECANCELED);
	} TX_ONABORT {
		if (BUG == 10) {
			D_RW(r)->count -= 1;
			pmemobj_persist(pop, &D_RW(r)->count, 8);
		}
	} TX_END
}

/* Adds an entry that is worth nothing: only the list and its length change. */
static void push_nothing(void)
{
	PMEMoid made = OID_NULL;

	TX_BEGIN(pop) {
		TOID(struct entry) e = TX_NEW(struct entry);

		D_RW(e)->value = 0;
		D_RW(e)->check = MAGIC;
		D_RW(e)->next = D_RO(r)->head;
		made = e.oid;
		if (BUG != 14) {
			TX_ADD_FIELD(r, head);
			D_RW(r)->head = made;
		}
		if (BUG != 13) {
			TX_ADD_FIELD(r, count);
			D_RW(r)->count++;
		}
	} TX_ONCOMMIT { /* BLAME(13, 14) */
		if (BUG == 13) {
			D_RW(r)->count++; /* BUG(13): after the commit */
			pmemobj_persist(pop, &D_RW(r)->count, 8);
		}
	} TX_ONABORT {
		aborted();
	} TX_END
	if (BUG == 14) {
		D_RW(r)->head = made; /* BUG(14): the entry counts before it is in the list */
		pmemobj_persist(pop, &D_RW(r)->head, 16);
	}
}

static int make_seal(PMEMobjpool *pool, void *memory, void *mark)
{
	struct seal *seal = memory;

	seal->mark = *(uint64_t *)mark; /* BLAME(15) */
	seal->check = seal->mark ^ MAGIC; /* BLAME(15) */
	if (BUG != 15)
		pmemobj_persist(pool, seal, sizeof(*seal)); /* BUG(15): the seal is not made persistent */
	return 0;
}

static void seal(uint64_t mark)
{
	if (!OID_IS_NULL(D_RO(r)->seal))
		pmemobj_free(&D_RW(r)->seal);
	if (pmemobj_alloc(pop, &D_RW(r)->seal, sizeof(struct seal), 1, make_seal, &mark))
		zoo_fail("obj_ledger: %s", pmemobj_errormsg());
}

static void visit(void)
{
	D_RW(r)->visits++; /* BLAME(16) */
	if (BUG != 16)
		pmemobj_persist(pop, &D_RW(r)->visits, 8); /* BUG(16): the number of visits is not made persistent */
}

static void check(void)
{
	const struct ledger *l = D_RO(r);
	uint64_t count = 0, sum = 0, total = 0;

	for (TOID(struct entry) e = entry_at(l->head); !TOID_IS_NULL(e); e = entry_at(D_RO(e)->next)) {
		if (D_RO(e)->check != (D_RO(e)->value ^ MAGIC))
			zoo_fail("obj_ledger: entry %lu is damaged", count);
		sum += D_RO(e)->value;
		if (++count > l->count)
			break;
	}
	if (count != l->count)
		zoo_fail("obj_ledger: the length is %lu, but there are %lu entries or more", l->count, count);
	if (sum != l->sum)
		zoo_fail("obj_ledger: the sum is %lu, not %lu", l->sum, sum);
	for (int i = 0; i < ACCOUNTS; i++) {
		if (l->accounts[i].check != (l->accounts[i].amount ^ MAGIC))
			zoo_fail("obj_ledger: account %d is damaged", i);
		total += l->accounts[i].amount;
	}
	if (total != TOTAL)
		zoo_fail("obj_ledger: the accounts hold %lu", total);
	if (l->kind == 0 ? l->label.number >= 1000 : memcmp(l->label.text, "text ", 5) || strcmp(l->label.text + 9, " text"))
		zoo_fail("obj_ledger: the label is damaged");
	if (!OID_IS_NULL(l->seal)) {
		const struct seal *s = pmemobj_direct(l->seal);

		if (s->check != (s->mark ^ MAGIC))
			zoo_fail("obj_ledger: the seal is broken");
	}
}

static void create(void)
{
	TX_BEGIN(pop) {
		TX_ADD(r);
		for (int i = 0; i < ACCOUNTS; i++) {
			D_RW(r)->accounts[i].amount = i == 0 ? TOTAL : 0;
			D_RW(r)->accounts[i].check = D_RO(r)->accounts[i].amount ^ MAGIC;
		}
		D_RW(r)->magic = MAGIC;
	} TX_ONABORT {
		aborted();
	} TX_END
}

int main(int argc, char **argv)
{
	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, OPERATIONS);
	pop = pmemobj_open(opts.pool, POBJ_LAYOUT_NAME(ledger));
	if (pop == NULL) {
		unlink(opts.pool);
		pop = pmemobj_create(opts.pool, POBJ_LAYOUT_NAME(ledger), PMEMOBJ_MIN_POOL, 0644);
	}
	if (pop == NULL)
		zoo_fail("obj_ledger: %s", pmemobj_errormsg());
	r = POBJ_ROOT(pop, struct ledger);
	if (D_RO(r)->magic == MAGIC)
		check();
	else
		create();
	for (long i = 0, done = 0; done < opts.ops; i++) {
		if (share[i % OPERATIONS] == 0)
			continue;
		done++;
		switch (i % OPERATIONS) {
		case 0: push(7 + (uint64_t)i); break;
		case 1: change(3 + (uint64_t)i); break;
		case 2: push(5 + (uint64_t)i); break;
		case 3: replace(2 + (uint64_t)i); break;
		case 4: move((uint64_t)i % ACCOUNTS, (uint64_t)(i + 1) % ACCOUNTS, 10); break;
		case 5: label((uint64_t)i); break;
		case 6: regret(); break;
		case 7: push_nothing(); break;
		case 8: pop_entry(); break;
		case 9: seal((uint64_t)i); break;
		default: visit(); break;
		}
	}
	check();
	pmemobj_close(pop);
	return 0;
}
