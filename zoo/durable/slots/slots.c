/*
 * A key-value table whose values are points: `put KEY X Y`, `del KEY`, `get KEY`.
 *
 * A slot has two places for its value. A put writes the place not in use and makes it durable; then one 8-byte store, the
 * slot's state, commits it. A deletion is one store to the state as well. Nothing is left for recovery to do.
 */
#include "lines.h"
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x73746f6c73ull
#define POOL_SIZE (64u << 10)
#define SLOTS 64

struct slot {
	_Alignas(ZOO_LINE) uint64_t state; /* 0: free; otherwise 1 + the place of the value */
	uint64_t key;      /* up to eight letters */
	struct {
		_Alignas(ZOO_LINE) uint64_t x;
		uint64_t y;
	} value[2];
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;
	struct slot slots[SLOTS];
};

static struct root *root;
static struct slot *deleted[SLOTS]; /* for a bug: slots that are freed when the program ends */
static int ndeleted;

static int is_deleted(const struct slot *s)
{
	for (int i = 0; i < ndeleted; i++)
		if (deleted[i] == s)
			return 1;
	return 0;
}

static struct slot *find(uint64_t key)
{
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &root->slots[i];

		if (s->state && s->key == key && !is_deleted(s))
			return s;
	}
	return NULL;
}

static struct slot *find_free(void)
{
	for (int i = 0; i < SLOTS; i++)
		if (!root->slots[i].state)
			return &root->slots[i];
	return NULL;
}

static void set_state(struct slot *s, uint64_t state)
{
	zoo_store(&s->state, state);
	zoo_persist(&s->state, sizeof s->state);
}

static void write_value(struct slot *s, int place, uint64_t x, uint64_t y)
{
	zoo_store(&s->value[place].x, x); /* BLAME(6) */
	zoo_store(&s->value[place].y, y); /* BLAME(6) */
	zoo_flush(&s->value[place], sizeof s->value[place]);
}

static int insert(uint64_t key, uint64_t x, uint64_t y)
{
	struct slot *s = find_free();

	if (!s)
		return 0;
	zoo_store(&s->key, key);
	zoo_flush(&s->key, sizeof s->key);
	if (BUG == 6) { /* BUG(6): the slot is in use before its value is written */
		zoo_fence();
		set_state(s, 1); /* BLAME(6) */
		write_value(s, 0, x, y);
		zoo_fence();
		return 1;
	}
	write_value(s, 0, x, y);
	zoo_fence();
	if (BUG == 1) { /* BUG(1): nothing flushes the state of a new slot before the reply */
		zoo_store(&s->state, 1); /* BLAME(1) */
		return 1;
	}
	set_state(s, 1); /* BLAME(7) */
	return 1;
}

static void update(struct slot *s, uint64_t key, uint64_t x, uint64_t y)
{
	int place = (int)s->state - 1;

	if (BUG == 3) { /* BUG(3): in place, one field after the other */
		zoo_store(&s->value[place].x, x); /* BLAME(3) */
		zoo_persist(&s->value[place].x, sizeof x); /* BLAME(3) */
		zoo_store(&s->value[place].y, y); /* BLAME(3) */
		zoo_persist(&s->value[place].y, sizeof y); /* BLAME(3) */
		return;
	}
	if (BUG == 7) { /* BUG(7): the new slot is in use while the old one still is */
		insert(key, x, y); /* BLAME(7) */
		set_state(s, 0); /* BLAME(7) */
		return;
	}
	if (BUG == 8) { /* BUG(8): the old slot is free before the new one is in use */
		set_state(s, 0); /* BLAME(8) */
		insert(key, x, y); /* BLAME(8) */
		return;
	}
	write_value(s, !place, x, y);
	zoo_fence();
	zoo_store(&s->state, (uint64_t)!place + 1); /* BLAME(2) */
	if (BUG != 2) /* BUG(2): nothing flushes the switch to the new value before the reply */
		zoo_persist(&s->state, sizeof s->state);
}

static void take_out(struct slot *s)
{
	if (BUG == 4 && ndeleted < SLOTS) { /* BUG(4): the slot is freed when the program ends, not before the reply */
		deleted[ndeleted++] = s; /* BLAME(4) */
		return;
	}
	zoo_store(&s->state, 0); /* BLAME(5) */
	zoo_flush(&s->state, sizeof s->state); /* BLAME(5) */
	if (BUG != 5) /* BUG(5): the reply does not wait for the flush */
		zoo_fence();
}

static void dump(void)
{
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *s = &root->slots[i];

		if (!s->state)
			continue;
		lines_item("%.8s.x %lu", (const char *)&s->key, s->value[s->state - 1].x);
		lines_item("%.8s.y %lu", (const char *)&s->key, s->value[s->state - 1].y);
	}
	lines_print();
}

int main(int argc, char **argv)
{
	int wants_dump = lines_want_dump(argc, argv), fresh;
	unsigned long x, y;
	char *line, word[9];

	root = zoo_map(argv[1], POOL_SIZE, &fresh);
	if (root->magic != MAGIC) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
	if (wants_dump) {
		dump();
		return 0;
	}
	while ((line = lines_next())) {
		struct slot *s;

		if (sscanf(line, "put %8s %lu %lu", word, &x, &y) == 3) {
			s = find(lines_word(word));
			if (s)
				update(s, s->key, x, y);
			lines_answer(s || insert(lines_word(word), x, y) ? "ok" : "full");
		} else if (sscanf(line, "del %8s", word) == 1) {
			s = find(lines_word(word));
			if (s)
				take_out(s);
			lines_answer(s ? "ok" : "none");
		} else if (sscanf(line, "get %8s", word) == 1) {
			lines_answer(find(lines_word(word)) ? "found" : "none");
		} else {
			lines_answer("?");
		}
	}
	for (int i = 0; i < ndeleted; i++)
		set_state(deleted[i], 0); /* BLAME(4) */
	return 0;
}
