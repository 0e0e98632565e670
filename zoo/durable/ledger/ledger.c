/*
 * Accounts with a redo log: `open NAME AMOUNT`, `move FROM TO AMOUNT`, `close NAME`.
 *
 * An operation writes to the log which words it will set to which values, and commits by one store, the number of the log's
 * entries. Then it sets the words, makes them durable and empties the log. Recovery does the same for the entries that it
 * finds; as they say what a word will be, not by how much it changes, it does not matter how many of them were set already.
 */
#include "lines.h"
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x72656764656cull
#define POOL_SIZE (64u << 10)
#define ACCOUNTS 128
#define ENTRIES 4

struct account {
	_Alignas(ZOO_LINE) uint64_t name; /* up to eight letters; 0: no account */
	uint64_t balance;
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t logged; /* entries that count */
	_Alignas(ZOO_LINE) struct {
		uint64_t word; /* an offset into the pool */
		uint64_t value;
	} log[ENTRIES];
	struct account accounts[ACCOUNTS];
};

static struct root *root;
static uint64_t nlog;
static struct account *closing; /* for a bug: closed, but not in the pool yet */

static struct account *find(uint64_t name)
{
	for (int i = 0; i < ACCOUNTS; i++)
		if (root->accounts[i].name == name && &root->accounts[i] != closing)
			return &root->accounts[i];
	return NULL;
}

static uint64_t *word_at(uint64_t offset)
{
	return (uint64_t *)(void *)((char *)root + offset % POOL_SIZE / 8 * 8);
}

static void log_word(uint64_t *word, uint64_t value)
{
	zoo_store(&root->log[nlog].word, (uint64_t)((char *)word - (char *)root));
	zoo_store(&root->log[nlog].value, value); /* BLAME(3) */
	nlog++;
}

static int is_name(const uint64_t *word)
{
	return ((uintptr_t)word & (ZOO_LINE - 1)) == offsetof(struct account, name);
}

/* Does what the log says. */
static void apply(uint64_t entries)
{
	for (uint64_t i = 0; i < entries; i++) {
		uint64_t *word = word_at(root->log[i].word), value = root->log[i].value;

		if (BUG == 3 && !is_name(word)) /* BUG(3): the log has differences, and recovery adds them once more */
			value += *word; /* BLAME(3) */
		zoo_store(word, value); /* BLAME(2, 3, 4) */
		if (BUG != 4 || !is_name(word) || !value) /* BUG(4): the log is emptied before a new account's name is durable */
			zoo_flush(word, sizeof *word);
	}
	zoo_fence();
	zoo_store(&root->logged, 0); /* BLAME(2, 3, 4) */
	zoo_persist(&root->logged, sizeof root->logged);
}

static void commit(void)
{
	if (closing) {
		log_word(&closing->name, 0); /* BLAME(5) */
		closing = NULL;
	}
	if (nlog == 0)
		return;
	zoo_persist(root->log, nlog * sizeof root->log[0]);
	zoo_store(&root->logged, nlog); /* BLAME(2, 3) */
	zoo_persist(&root->logged, sizeof root->logged);
	apply(nlog);
	nlog = 0;
}

static void recover(void)
{
	uint64_t entries = root->logged;

	if (root->magic != MAGIC) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
	if (entries == 0 || entries > ENTRIES)
		return;
	if (BUG == 2 && entries > 1) /* BUG(2): the last entry is dropped */
		entries--; /* BLAME(2) */
	apply(entries);
}

static int open_account(uint64_t name, uint64_t amount)
{
	struct account *a = find(0);

	if (!a || find(name))
		return 0;
	log_word(&a->balance, BUG == 3 ? amount - a->balance : amount);
	log_word(&a->name, name);
	commit();
	return 1;
}

static int move(uint64_t from, uint64_t to, uint64_t amount)
{
	struct account *a = find(from), *b = find(to);

	if (!a || !b || a == b || a->balance < amount)
		return 0;
	if (BUG == 1) { /* BUG(1): both balances are set without the log */
		zoo_store(&a->balance, a->balance - amount); /* BLAME(1) */
		zoo_persist(&a->balance, sizeof a->balance); /* BLAME(1) */
		zoo_store(&b->balance, b->balance + amount); /* BLAME(1) */
		zoo_persist(&b->balance, sizeof b->balance); /* BLAME(1) */
		return 1;
	}
	log_word(&a->balance, BUG == 3 ? -amount : a->balance - amount); /* BLAME(2, 3) */
	log_word(&b->balance, BUG == 3 ? amount : b->balance + amount); /* BLAME(2, 3) */
	commit();
	return 1;
}

static int close_account(uint64_t name)
{
	struct account *a = find(name);

	if (!a)
		return 0;
	if (BUG == 5) { /* BUG(5): written with the next operation, or at the end */
		commit();
		closing = a; /* BLAME(5) */
		return 1;
	}
	log_word(&a->name, 0);
	commit();
	return 1;
}

int main(int argc, char **argv)
{
	int wants_dump = lines_want_dump(argc, argv), fresh;
	unsigned long amount;
	char *line, a[9], b[9];

	root = zoo_map(argv[1], POOL_SIZE, &fresh);
	recover();
	if (wants_dump) {
		for (int i = 0; i < ACCOUNTS; i++)
			if (root->accounts[i].name)
				lines_item("%.8s %lu", (char *)&root->accounts[i].name, root->accounts[i].balance);
		lines_print();
		return 0;
	}
	while ((line = lines_next())) {
		int done = 0;

		if (sscanf(line, "open %8s %lu", a, &amount) == 2)
			done = open_account(lines_word(a), amount);
		else if (sscanf(line, "move %8s %8s %lu", a, b, &amount) == 3)
			done = move(lines_word(a), lines_word(b), amount);
		else if (sscanf(line, "close %8s", a) == 1)
			done = close_account(lines_word(a));
		lines_answer(done ? "ok" : "refused");
	}
	commit();
	return 0;
}
