/*
 * promises [MODE...] POOL [FILE]: operations `put K V`, `del K` and `get K`, a line each, on a table in PM; K is 0 to 7. They come from
 * standard input, or from FILE.
 * promises [MODE...] POOL dump: what the table holds.
 *
 * Modes:
 *   late      the value is flushed after the answer
 *   silent    nothing is answered
 *   whole     all operations are read before the first is done
 *   marked    as `whole`, and each is marked
 *   batch     answers and flushes come after every third operation
 *   uptime    the dump begins with something that is another one each time
 *   restarts  the dump counts how often it was run
 *   repairs   the dump says so once if it comes after a crash inside an operation
 */
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../../../include/pmvet.h"

#define KEYS 8
#define LINES 64

/* One line each, so that none is persistent by the flush of another. */
struct slot {
	uint64_t value;
	uint64_t unused[7];
};

struct pool {
	struct slot slots[KEYS];
	struct slot restarts;
	struct slot busy;
};

static struct pool *pool;
static int late, silent, whole, marked, batch, uptime, restarts, repairs;

static void persist(const void *at)
{
	_mm_clwb((void *)at);
	_mm_sfence();
}

static void answer(const char *text)
{
	if (!silent)
		puts(text);
}

static void operation(const char *line)
{
	static unsigned number;
	unsigned key = 0, value = 0;
	int puts_it = sscanf(line, "put %u %u", &key, &value) == 2;

	if (sscanf(line, "get %u", &key) == 1) {
		uint64_t found = pool->slots[key % KEYS].value;

		printf(found ? "%lu\n" : "none\n", found);
		return;
	}
	if (!puts_it && sscanf(line, "del %u", &key) != 1)
		exit(2);
	struct slot *slot = &pool->slots[key % KEYS];
	if (repairs) {
		pool->busy.value = 1;
		persist(&pool->busy);
	}
	*(volatile uint64_t *)&slot->value = puts_it ? value : 0;
	if (batch) {
		if (++number % 3 == 0) {
			for (int i = 0; i < KEYS; i++)
				_mm_clwb(&pool->slots[i]);
			_mm_sfence();
			puts("all done");
		}
		return;
	}
	if (late)
		answer("ok");
	persist(slot);
	if (repairs) {
		pool->busy.value = 0;
		persist(&pool->busy);
	}
	if (!late)
		answer("ok");
}

static void work(FILE *from)
{
	static char lines[LINES][32];
	int count = 0;

	while (count < LINES && fgets(lines[count], sizeof lines[count], from)) {
		lines[count][strcspn(lines[count], "\n")] = 0;
		if (whole || marked) {
			count++;
			continue;
		}
		operation(lines[count]);
	}
	for (int i = 0; i < count; i++) {
		if (marked)
			PMVET_OP_BEGIN(lines[i]);
		operation(lines[i]);
		if (marked)
			PMVET_OP_END(lines[i]);
	}
}

static void dump(void)
{
	if (uptime) {
		struct timespec now;

		clock_gettime(CLOCK_REALTIME, &now);
		printf("now: %ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
	}
	if (restarts) {
		pool->restarts.value++;
		persist(&pool->restarts);
		for (uint64_t i = 0; i < pool->restarts.value; i++)
			puts("restarted");
	}
	if (pool->busy.value) {
		pool->busy.value = 0;
		persist(&pool->busy);
		puts("cleaned up after a crash");
	}
	for (int i = 0; i < KEYS; i++)
		if (pool->slots[i].value)
			printf("%d %lu\n", i, pool->slots[i].value);
}

int main(int argc, char **argv)
{
	struct {
		const char *name;
		int *flag;
	} modes[] = { { "late", &late },	 { "silent", &silent }, { "whole", &whole },	   { "marked", &marked },
		      { "batch", &batch }, { "uptime", &uptime }, { "restarts", &restarts },
		      { "repairs", &repairs } };
	int at = 1;

	for (int found = 1; found && at < argc;) {
		found = 0;
		for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++)
			if (!strcmp(argv[at], modes[i].name))
				found = *modes[i].flag = 1;
		at += found;
	}
	if (at >= argc)
		return 2;
	int fd = open(argv[at], O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct pool) + 4096))
		return 2;
	pool = mmap(NULL, sizeof *pool, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool == MAP_FAILED)
		return 2;
	if (at + 1 < argc && !strcmp(argv[at + 1], "dump")) {
		dump();
		return 0;
	}
	FILE *from = at + 1 < argc ? fopen(argv[at + 1], "r") : stdin;
	if (!from)
		return 2;
	work(from);
	return 0;
}
