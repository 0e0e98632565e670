/*
 * A log of large batches without any order between data and header: a batch counts if its checksum is right, so one fence is
 * enough for all of it. Recovery has to read every line of a batch that may be torn, in as many states as a crash can
 * leave, only to find out whether the sum is right.
 */
#include "zoo.h"

#include <stdbool.h>

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x676f6c5f6d7573ull
#define BATCHES 256u
#define WORDS 62u /* of data in a batch: with the header eight lines */

struct batch {
	_Alignas(ZOO_LINE) uint64_t sum; /* of all that follows */
	uint64_t number;                 /* from 1 on */
	uint64_t data[WORDS];
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;        /* stored last when the pool is made */
	_Alignas(ZOO_LINE) uint64_t acknowledged; /* batches that a user counts on */
	_Alignas(ZOO_LINE) struct batch batch[BATCHES];
};

static struct root *root;

static uint64_t datum(uint64_t number, uint64_t i)
{
	return zoo_mix(number * WORDS + i) | 1;
}

static uint64_t checksum(const struct batch *b)
{
	/* BUG(1): the sum leaves out the last line, which may be old */
	uint64_t sum = zoo_mix(b->number), n = BUG == 1 ? WORDS - 8 : WORDS; /* BLAME(1) */

	for (uint64_t i = 0; i < n; i++)
		sum = zoo_mix(sum ^ b->data[i]);
	return sum;
}

static bool counts(const struct batch *b, uint64_t number)
{
	if (b->number != number)
		return false;
	if (BUG == 4) /* BUG(4): recovery does not compare the sum */
		return true;
	return b->sum == checksum(b);
}

static void acknowledge(uint64_t number)
{
	zoo_store(&root->acknowledged, number); /* BLAME(3) */
	zoo_persist(&root->acknowledged, sizeof root->acknowledged);
}

static void append(uint64_t number)
{
	struct batch *b = &root->batch[number - 1];

	for (uint64_t i = 0; i < WORDS; i++) {
		uint64_t value = datum(number, i);

		zoo_store(&b->data[i], value); /* BLAME(2, 3, 4) */
	}
	zoo_store(&b->number, number); /* BLAME(3) */
	zoo_store(&b->sum, checksum(b)); /* BLAME(3) */
	if (BUG == 2) /* BUG(2): the last line is not flushed before the batch is acknowledged */
		zoo_flush(b, sizeof *b - ZOO_LINE); /* BLAME(2) */
	else
		zoo_flush(b, sizeof *b); /* BLAME(3) */
	if (BUG != 3) /* BUG(3): no fence between the flush of the batch and its acknowledgement */
		zoo_fence();
	acknowledge(number); /* BLAME(3) */
}

static uint64_t recover(void)
{
	uint64_t n = 0;

	while (n < BATCHES && counts(&root->batch[n], n + 1)) {
		n++;
		for (uint64_t i = 0; i < WORDS; i++)
			if (root->batch[n - 1].data[i] != datum(n, i))
				zoo_fail("sum_log: batch %lu counts, but its word %lu is wrong", n, i);
	}
	if (n < root->acknowledged)
		zoo_fail("sum_log: %lu batches were acknowledged and %lu are there", root->acknowledged, n);
	if (n > root->acknowledged)
		acknowledge(n);
	return n;
}

int main(int argc, char **argv)
{
	struct zoo_opts o;
	int fresh;

	zoo_parse(argc, argv, &o);
	root = zoo_map(o.pool, sizeof *root, &fresh);
	if (root->magic != MAGIC) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
	uint64_t n = recover();
	for (long i = 0; i < o.ops && n < BATCHES; i++)
		append(++n);
	printf("sum_log: %lu batches\n", recover());
	return 0;
}
