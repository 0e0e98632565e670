/*
 * A persistent ring log of checksummed records of varying length. Positions grow for ever; their remainder
 * is the place in the ring. A record carries its position, so one left from an earlier lap is never taken
 * for a new one, and it never wraps: a pad record fills the end of the ring instead. An append is durable
 * with its record alone. The tail is only a checkpoint, stored after every few appends: recovery goes
 * on from there as long as it finds whole records. Those must be of the present epoch, which every start
 * raises, so that what an earlier crash has left behind the end is never picked up later.
 */
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x676f6c676e6972ull
#define POOL_SIZE (256u << 10)
#define RING 2048u                  /* small, so that it wraps often */
#define FIRST ((1ull << 32) - RING) /* the first position: soon carries into the upper half */
#define GRAIN 32u                   /* sizes are multiples of this, so a header always fits */
#define MAX_DATA 120u
#define CHECKPOINT 4                /* appends between two stores of the tail */

enum kind { DATA = 1, PAD = 2 };

struct record {
	uint64_t pos;
	uint32_t epoch;
	uint32_t kind;
	uint32_t len; /* bytes of data, or for a pad the bytes it fills */
	uint32_t crc; /* of the fields above and the data */
	uint8_t data[];
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic; /* stored last when the pool is made */
	_Alignas(ZOO_LINE) union {
		uint64_t head;         /* the oldest record */
		uint32_t head_half[2]; /* unused but for BUG(10) */
	};
	_Alignas(ZOO_LINE) uint64_t tail; /* records up to here are whole; persists before the two below */
	uint64_t epoch;
	uint64_t closed;                  /* the last run came to its end, and the tail is exact */
	_Alignas(ZOO_LINE) uint64_t bytes; /* unused but for BUG(15) */
	_Alignas(ZOO_LINE) uint8_t ring[RING];
};

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread void *late; /* for some bugs: what the thread persists when it has released the lock */
static __thread size_t late_len;
static uint64_t end;     /* where the next record goes */
static int since;        /* appends since the tail was stored */
static uint64_t appended;
static struct zoo_opts opts;
static int share[] = { 85, 5, 10 }; /* append, truncate, scan */

static struct record *record_at(uint64_t pos)
{
	return (struct record *)(root->ring + pos % RING);
}

static uint32_t room_at(uint64_t pos)
{
	return RING - (uint32_t)(pos % RING);
}

static uint32_t size_of(uint32_t len)
{
	return ((uint32_t)sizeof(struct record) + len + GRAIN - 1) & ~(GRAIN - 1);
}

static uint8_t byte_of(uint64_t pos, uint32_t i)
{
	return (uint8_t)(zoo_mix(pos + i / 8) >> (i % 8 * 8));
}

static uint32_t record_crc(const struct record *r)
{
	struct { uint64_t pos; uint32_t epoch, kind, len, data; } v = { r->pos, r->epoch, r->kind, r->len, 0 };

	if (r->kind == DATA && BUG != 4) /* BUG(4): the data is not in the checksum */
		v.data = zoo_crc32(r->data, r->len);
	return zoo_crc32(&v, sizeof v);
}

/* The size of the record at pos, or 0 if there is none that is whole. Reads nothing beyond the ring. */
static uint32_t check_record(uint64_t pos, int trust)
{
	const struct record *r = record_at(pos);
	uint32_t size;

	if (BUG == 8 && trust && r->pos <= pos) /* BUG(8): a record of an earlier lap is as good as a new one */
		pos = r->pos;
	if (r->pos != pos || (r->kind != DATA && r->kind != PAD))
		return 0;
	if (r->kind == PAD ? r->len != room_at(pos) : r->len > MAX_DATA)
		return 0;
	size = r->kind == PAD ? r->len : size_of(r->len);
	if (size > room_at(pos))
		return 0;
	if (BUG == 7 && trust) /* BUG(7): recovery takes a record without looking at its checksum */
		return size;
	return r->crc == record_crc(r) ? size : 0;
}

/* Walks the log from head to tail; fails on anything no crash may leave. Returns the number of records. */
static uint64_t verify(uint64_t *digest)
{
	uint64_t n = 0, pos = root->head;

	*digest = 0;
	if (pos < FIRST || pos % GRAIN || root->tail < pos || root->tail - pos > RING)
		zoo_fail("ring_log: head %#lx, tail %#lx", pos, root->tail);
	while (pos != root->tail) {
		const struct record *r = record_at(pos);
		uint32_t size = check_record(pos, 0);

		if (size == 0 || size > root->tail - pos || r->epoch > root->epoch)
			zoo_fail("ring_log: no whole record at %#lx (tail %#lx)", pos, root->tail);
		for (uint32_t i = 0; r->kind == DATA && i < r->len; i++)
			if (r->data[i] != byte_of(pos, i))
				zoo_fail("ring_log: wrong data at %#lx", pos);
		*digest = zoo_mix(*digest ^ r->pos ^ r->len);
		n += r->kind == DATA;
		pos += size;
	}
	return n;
}

static void create(void)
{
	if (BUG == 11) { /* BUG(11): the pool is declared valid before it is */
		zoo_store(&root->magic, MAGIC); /* BLAME(11) */
		zoo_persist(&root->magic, sizeof root->magic); /* BLAME(11) */
	}
	root->head = FIRST; /* BLAME(12) */
	if (BUG != 12) /* BUG(12): the head is not flushed before the magic number */
		zoo_flush(&root->head, sizeof root->head);
	root->tail = FIRST;
	root->epoch = 0;
	root->closed = 0;
	zoo_persist(&root->tail, 3 * sizeof(uint64_t));
	if (BUG != 11) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
}

/* Finds the end of the log, stores it as the tail and opens a new epoch. */
static void recover(void)
{
	uint32_t size;

	if (root->tail < FIRST || root->tail % GRAIN || root->head < FIRST || root->head % GRAIN)
		zoo_fail("ring_log: head %#lx, tail %#lx", root->head, root->tail);
	/* A truncation may have passed the last checkpoint. */
	end = root->tail > root->head ? root->tail : root->head;
	while (!root->closed && end - root->head < RING && (size = check_record(end, 1)) != 0) {
		if (record_at(end)->epoch != root->epoch && BUG != 8)
			break;
		end += size;
	}
	if (root->tail != end)
		zoo_store(&root->tail, end);
	zoo_store(&root->epoch, root->epoch + 1);
	zoo_store(&root->closed, 0ul);
	zoo_persist(&root->tail, 3 * sizeof(uint64_t));
}

static void store_tail(uint64_t pos)
{
	zoo_store(&root->tail, pos); /* BLAME(2, 3) */
	zoo_persist(&root->tail, sizeof root->tail);
	since = 0;
}

static void store_head(uint64_t pos)
{
	if (BUG == 10) { /* BUG(10): the position is stored in two halves */
		zoo_store(&root->head_half[0], (uint32_t)pos); /* BLAME(10) */
		zoo_persist(&root->head_half[0], sizeof root->head_half[0]); /* BLAME(10) */
		zoo_store(&root->head_half[1], (uint32_t)(pos >> 32)); /* BLAME(10) */
		zoo_persist(&root->head_half[1], sizeof root->head_half[1]); /* BLAME(10) */
		return;
	}
	zoo_store(&root->head, pos); /* BLAME(5, 8, 17) */
	if (BUG == 17) { /* BUG(17): the head is persisted after the lock is released */
		late = &root->head;
		late_len = sizeof root->head;
		return;
	}
	if (BUG != 5) /* BUG(5): never flushed, so old records are overwritten while still in the log */
		zoo_persist(&root->head, sizeof root->head);
}

/* The oldest position that leaves need bytes free at the end. */
static uint64_t make_room(uint64_t need)
{
	uint64_t head = root->head;

	while (RING - (end - head) < need) {
		uint32_t size = check_record(head, 0);

		if (size == 0)
			zoo_fail("ring_log: no whole record at %#lx", head);
		head += size;
	}
	return head;
}

/* Builds a record in DRAM and writes it to the ring in one go; the caller fences. */
static void write_record(uint64_t pos, enum kind kind, uint32_t len)
{
	_Alignas(8) uint8_t buf[sizeof(struct record) + MAX_DATA] = { 0 };
	struct record *r = (struct record *)buf;
	uint32_t used = (sizeof *r + (kind == DATA ? len : 0) + 7) & ~7u; /* whole words */

	*r = (struct record){ .pos = pos, .epoch = (uint32_t)root->epoch, .kind = kind, .len = len };
	for (uint32_t i = 0; kind == DATA && i < len; i++)
		r->data[i] = byte_of(pos, i);
	if (BUG == 16) /* BUG(16): the header is written once without and once with the checksum */
		zoo_copy(record_at(pos), buf, sizeof *r); /* BLAME(16) */
	r->crc = record_crc(r);
	if (BUG == 4) {
		zoo_copy(record_at(pos), buf, sizeof *r); /* BLAME(4) */
		zoo_persist(record_at(pos), sizeof *r); /* BLAME(4) */
		zoo_copy(record_at(pos)->data, r->data, used - sizeof *r); /* BLAME(4) */
	} else {
		zoo_copy(record_at(pos), buf, used); /* BLAME(1, 2, 6, 7, 9, 16, 18) */
	}
	if (BUG == 9 && kind == PAD) /* BUG(9): a pad record is not flushed */
		return;
	if (BUG == 18 && kind == DATA) { /* BUG(18): a record is persisted after the lock is released */
		late = record_at(pos);
		late_len = used;
		return;
	}
	if (BUG == 1) /* BUG(1): flushes the header only */
		used = sizeof *r;
	if (BUG == 13 && kind == DATA) /* BUG(13): flushes as much as the longest record would need */
		used = room_at(pos) < sizeof buf ? room_at(pos) : sizeof buf;
	zoo_flush(record_at(pos), used); /* BLAME(2, 13) */
}

static void append(uint32_t len)
{
	uint32_t size = size_of(len), pad = size > room_at(end) ? room_at(end) : 0;
	uint64_t head = make_room(size + pad);
	int due = ++since >= CHECKPOINT;

	if (head != root->head && BUG != 6) /* BUG(6): the head moves only after the record is in its place */
		store_head(head);
	if (due && BUG == 3) /* BUG(3): the tail counts the record before it is written */
		store_tail(end + pad + size); /* BLAME(3) */
	if (pad)
		write_record(end, PAD, pad); /* BLAME(6) */
	write_record(end + pad, DATA, len); /* BLAME(6) */
	if (BUG != 2) /* BUG(2): nothing orders the record before the tail */
		zoo_fence();
	if (BUG == 14) /* BUG(14): a second fence with nothing to wait for */
		zoo_fence(); /* BLAME(14) */
	end += pad + size;
	appended++;
	if (BUG == 15) /* BUG(15): a statistic that recovery never reads is kept in the pool */
		zoo_store(&root->bytes, root->bytes + len); /* BLAME(15) */
	if (due && BUG != 3)
		store_tail(end); /* BLAME(2) */
	if (head != root->head && BUG == 6)
		store_head(head);
}

/* Drops the oldest records, up to all of them. */
static void truncate_log(uint64_t bytes)
{
	uint64_t head = root->head;

	while (head != end && head - root->head < bytes) {
		uint32_t size = check_record(head, 0);

		if (size == 0)
			zoo_fail("ring_log: no whole record at %#lx", head);
		head += size;
	}
	if (head != root->head)
		store_head(head);
}

static void scan(void)
{
	uint32_t size;

	for (uint64_t pos = root->head; pos != end; pos += size)
		if ((size = check_record(pos, 0)) == 0)
			zoo_fail("ring_log: no whole record at %#lx", pos);
}

static void worker(int id, void *arg)
{
	uint64_t rng = opts.seed ^ zoo_mix((uint64_t)id + 1);

	(void)arg;
	for (long i = zoo_share(opts.ops, opts.threads, id); i > 0; i--) {
		int op = zoo_pick(&rng, share, 3);
		uint64_t r = zoo_rand(&rng);

		pthread_mutex_lock(&lock);
		if (op == 0)
			append((uint32_t)(r % (MAX_DATA + 1)));
		else if (op == 1)
			truncate_log(r % (2 * RING));
		else
			scan();
		pthread_mutex_unlock(&lock);
		if (late) {
			zoo_persist(late, late_len);
			late = NULL;
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t n, digest;
	int fresh;

	zoo_parse(argc, argv, &opts);
	zoo_shares(opts.mix, share, 3);
	root = zoo_map(opts.pool, POOL_SIZE, &fresh);
	if (fresh || root->magic == 0)
		create();
	else if (root->magic != MAGIC)
		zoo_fail("ring_log: not a pool of this program");
	recover();
	verify(&digest);
	zoo_threads(opts.threads, worker, NULL);
	if (root->tail != end)
		zoo_store(&root->tail, end);
	zoo_store(&root->closed, 1ul);
	zoo_persist(&root->tail, 3 * sizeof(uint64_t));
	n = verify(&digest);
	printf("ring_log: %ld ops, %lu appended, %lu records, %#lx-%#lx, digest %016lx\n", opts.ops, appended, n,
	       root->head, root->tail, digest);
	return 0;
}
