/*
 * Songs in two lists, with libpmemobj's atomic lists: `add NAME`, `play NAME` (moves it from the queue to what was played),
 * `rate NAME N`, `drop NAME`.
 *
 * Each operation is one step of the library. A song that is dropped is out of its list at once, and freed with the next one that
 * is dropped; recovery frees the songs that are in no list.
 */
#include <libpmemobj.h>
#include <stdint.h>
#include <unistd.h>

#include "lines.h"

#ifndef BUG
#define BUG 0
#endif

#define LAYOUT "playlist"

POBJ_LAYOUT_BEGIN(playlist);
POBJ_LAYOUT_ROOT(playlist, struct root);
POBJ_LAYOUT_TOID(playlist, struct song);
POBJ_LAYOUT_END(playlist);

struct song {
	POBJ_LIST_ENTRY(struct song) links;
	uint64_t name;
	uint64_t rating;
};

POBJ_LIST_HEAD(songs, struct song);

struct root {
	struct songs queue, played;
};

static PMEMobjpool *pop;
static struct root *root;
static TOID(struct song) dropped; /* out of its list, but not freed yet */

static TOID(struct song) find(struct songs *list, uint64_t name)
{
	TOID(struct song) s;

	POBJ_LIST_FOREACH(s, list, links)
		if (D_RO(s)->name == name)
			break;
	return s;
}

static int is_in(struct songs *list, TOID(struct song) song)
{
	TOID(struct song) s;

	POBJ_LIST_FOREACH(s, list, links)
		if (TOID_EQUALS(s, song))
			return 1;
	return 0;
}

static int fill(PMEMobjpool *pool, void *object, void *from)
{
	struct song *s = object;
	const struct song *like = from;

	s->name = like->name;
	s->rating = like->rating;
	pmemobj_persist(pool, &s->name, 2 * sizeof s->name);
	return 0;
}

static void append(struct songs *list, const struct song *like)
{
	struct song copy = { .name = like->name, .rating = like->rating };

	POBJ_LIST_INSERT_NEW_TAIL(pop, list, links, sizeof(struct song), fill, &copy); /* BLAME(1) */
}

static void free_dropped(void)
{
	if (!TOID_IS_NULL(dropped))
		POBJ_FREE(&dropped);
	dropped = TOID_NULL(struct song);
}

static void recover(void)
{
	TOID(struct song) s, next;

	POBJ_FOREACH_SAFE_TYPE(pop, s, next) {
		if (is_in(&root->queue, s) || is_in(&root->played, s))
			continue;
		if (BUG == 3) /* BUG(3): a song that is in no list is taken for a new one, and queued */
			POBJ_LIST_INSERT_TAIL(pop, &root->queue, s, links); /* BLAME(3) */
		else
			POBJ_FREE(&s);
	}
}

static int play(uint64_t name)
{
	TOID(struct song) s = find(&root->queue, name);

	if (TOID_IS_NULL(s))
		return 0;
	if (BUG == 1) { /* BUG(1): copied to the other list, and removed afterwards */
		append(&root->played, D_RO(s)); /* BLAME(1) */
		POBJ_LIST_REMOVE_FREE(pop, &root->queue, s, links); /* BLAME(1) */
	} else if (BUG == 2) { /* BUG(2): for a moment it is in neither list */
		POBJ_LIST_REMOVE(pop, &root->queue, s, links); /* BLAME(2) */
		POBJ_LIST_INSERT_TAIL(pop, &root->played, s, links); /* BLAME(2) */
	} else {
		POBJ_LIST_MOVE_ELEMENT_TAIL(pop, &root->queue, &root->played, s, links, links);
	}
	return 1;
}

static int rate(uint64_t name, uint64_t rating)
{
	TOID(struct song) s = find(&root->queue, name);

	if (TOID_IS_NULL(s))
		s = find(&root->played, name);
	if (TOID_IS_NULL(s))
		return 0;
	D_RW(s)->rating = rating; /* BLAME(4) */
	if (BUG != 4) /* BUG(4): the rating is never flushed */
		pmemobj_persist(pop, &D_RW(s)->rating, sizeof rating);
	return 1;
}

static int drop(uint64_t name)
{
	struct songs *list = &root->queue;
	TOID(struct song) s = find(list, name);

	if (TOID_IS_NULL(s)) {
		list = &root->played;
		s = find(list, name);
	}
	if (TOID_IS_NULL(s))
		return 0;
	free_dropped();
	POBJ_LIST_REMOVE(pop, list, s, links); /* BLAME(3) */
	dropped = s;
	return 1;
}

static void print(struct songs *list, const char *which)
{
	TOID(struct song) s;

	POBJ_LIST_FOREACH(s, list, links)
		lines_item("%.8s %s, rated %lu", (const char *)&D_RO(s)->name, which, D_RO(s)->rating);
}

int main(int argc, char **argv)
{
	int wants_dump = lines_want_dump(argc, argv);
	unsigned long rating;
	char *line, name[9];

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
	root = D_RW(POBJ_ROOT(pop, struct root));
	recover();
	if (wants_dump) {
		print(&root->queue, "queued");
		print(&root->played, "played");
		lines_print();
	}
	while (!wants_dump && (line = lines_next())) {
		int done = 0;

		if (sscanf(line, "rate %8s %lu", name, &rating) == 2) {
			done = rate(lines_word(name), rating);
		} else if (sscanf(line, "play %8s", name) == 1) {
			done = play(lines_word(name));
		} else if (sscanf(line, "drop %8s", name) == 1) {
			done = drop(lines_word(name));
		} else if (sscanf(line, "add %8s", name) == 1) {
			struct song song = { .name = lines_word(name) };

			done = TOID_IS_NULL(find(&root->queue, song.name)) && TOID_IS_NULL(find(&root->played, song.name));
			if (done)
				append(&root->queue, &song);
		}
		lines_answer(done ? "ok" : "refused");
	}
	free_dropped();
	pmemobj_close(pop);
	return 0;
}
