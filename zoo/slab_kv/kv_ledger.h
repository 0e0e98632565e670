/*
 * The callers of a key-value store, and the oracle they make: shared by slab_kv, cl_hash, ext_hash and bptree.
 *
 * The ledger is what the callers know, kept in the pool beside the store under test:
 *  - acked[k] is the version of key k that its writer was told is durable: odd while the key is there, even
 *    (grown by one) when it was removed, so that versions of a key only ever grow;
 *  - intent names the key and version a thread is about to write, persisted before the store is called;
 *  - witness names a key and version that a thread has read, persisted after the read: the durable side effect
 *    of a reader. A reader that saw version v, or saw that v is gone, has told the world.
 * After a crash each key must be at its acked version or at the version of a pending intent, and not older than
 * any witness of it. That is durable linearizability for these workloads, because one thread owns the writes to
 * a key during a run; all threads read all keys, and keys of different owners share buckets, segments and nodes.
 */
#ifndef KV_LEDGER_H
#define KV_LEDGER_H

#include <stdbool.h>
#include "zoo.h"

#define KV_KEYS 256
#define KV_GROUP 8 /* keys whose acked words share a line: they have one owner, so its flushes are its own */
#define KV_THREADS 16

struct kv_caller {
	uint64_t intent, witness; /* key << 32 | version */
	uint64_t pad[6];
};

struct kv_ledger {
	uint64_t acked[KV_KEYS];
	struct kv_caller caller[KV_THREADS];
} __attribute__((aligned(ZOO_LINE)));

/* The store under test. The value of a key says its version; get returns false when the key is absent. */
struct kv_store {
	struct kv_ledger *ledger;
	void (*put)(uint64_t key, uint64_t value);
	bool (*get)(uint64_t key, uint64_t *value);
	void (*del)(uint64_t key);
};

/* The only value that may ever be stored for this version of the key; no two keys share a value. */
static inline uint64_t kv_value(uint64_t key, uint64_t version)
{
	return version << 32 | key << 16 | (zoo_mix(key << 32 | version) & 0xffff);
}

static inline uint64_t kv_version(uint64_t value)
{
	return value >> 32;
}

/* Called by a walk over the store for each pair it finds; found[] collects the versions, 0 where absent. */
static inline void kv_found(uint64_t found[KV_KEYS], uint64_t key, uint64_t value)
{
	uint64_t version = kv_version(value);

	if (key >= KV_KEYS)
		zoo_fail("key %lu was never written", key);
	if (!(version & 1) || value != kv_value(key, version))
		zoo_fail("key %lu holds %lx, which was never written", key, value);
	if (found[key])
		zoo_fail("key %lu is there twice", key);
	found[key] = version;
}

/* The version a key is at, given what the walk found of it; fails unless its writer can accept that. */
static inline uint64_t kv_settle(const struct kv_ledger *l, uint64_t key, uint64_t found)
{
	uint64_t acked = l->acked[key], pending = 0;

	for (int t = 0; t < KV_THREADS; t++) {
		uint64_t w = l->caller[t].intent;

		if (w >> 32 == key && (uint32_t)w > acked)
			pending = (uint32_t)w;
	}
	if (found == acked || (found && found == pending))
		return found;
	if (found)
		zoo_fail("key %lu is at version %lu, its writer was told %lu", key, found, acked);
	if (!(acked & 1))
		return acked;
	if (pending && !(pending & 1))
		return pending;
	zoo_fail("key %lu is lost, its writer was told version %lu", key, acked);
}

/* Checks what the walk found against everything the callers were told. */
static inline void kv_verify(const struct kv_ledger *l, const uint64_t found[KV_KEYS])
{
	uint64_t at[KV_KEYS];

	for (uint64_t k = 0; k < KV_KEYS; k++)
		at[k] = kv_settle(l, k, found[k]);
	for (int t = 0; t < KV_THREADS; t++) {
		uint64_t w = l->caller[t].witness, key = w >> 32;

		if (key >= KV_KEYS)
			zoo_fail("witness of thread %d names key %lu", t, key);
		if (at[key] < (uint32_t)w)
			zoo_fail("thread %d saw key %lu at version %u, now it is at %lu", t, key, (uint32_t)w, at[key]);
	}
}

/* After a crash: verifies, then tells the callers how their pending operations ended. */
static inline void kv_recover(struct kv_ledger *l, const uint64_t found[KV_KEYS])
{
	kv_verify(l, found);
	for (uint64_t k = 0; k < KV_KEYS; k++) {
		uint64_t at = kv_settle(l, k, found[k]);

		if (at != l->acked[k]) {
			l->acked[k] = at;
			zoo_persist(&l->acked[k], sizeof l->acked[k]);
		}
	}
	/* Only now: an intent is what makes an unacknowledged version acceptable. */
	for (int t = 0; t < KV_THREADS; t++) {
		if (l->caller[t].intent) {
			l->caller[t].intent = 0;
			zoo_persist(&l->caller[t], sizeof l->caller[t]);
		}
	}
}

struct kv_run {
	const struct kv_store *store;
	const struct zoo_opts *opts;
	int share[3];
};

static inline void kv_write(const struct kv_store *s, int id, uint64_t key, bool remove)
{
	uint64_t *acked = &s->ledger->acked[key];
	struct kv_caller *me = &s->ledger->caller[id];
	uint64_t version = remove ? *acked + 1 : (*acked + 1) | 1;

	if (remove && !(*acked & 1)) {
		s->del(key); /* absent: must change nothing */
		return;
	}
	me->intent = key << 32 | version;
	zoo_persist(me, sizeof *me);
	if (remove)
		s->del(key);
	else
		s->put(key, kv_value(key, version));
	zoo_store(acked, version);
	zoo_persist(acked, sizeof *acked);
}

/* seen[k] is the newest version this thread knows of; a linearizable store never shows an older one. */
static inline void kv_read(const struct kv_store *s, int id, uint64_t key, uint64_t *seen)
{
	struct kv_caller *me = &s->ledger->caller[id];
	uint64_t value, version = (seen[key] + 1) & ~1ul;

	if (s->get(key, &value)) {
		version = kv_version(value);
		if (version < seen[key] || value != kv_value(key, version))
			zoo_fail("get of key %lu returned %lx after version %lu", key, value, seen[key]);
	}
	seen[key] = version;
	if (version && me->witness != (key << 32 | version)) {
		me->witness = key << 32 | version;
		zoo_persist(me, sizeof *me);
	}
}

static inline void kv_worker(int id, void *arg)
{
	struct kv_run *r = arg;
	int n = r->opts->threads;
	uint64_t rng = zoo_mix(r->opts->seed + (uint64_t)id + 1), seen[KV_KEYS] = { 0 };
	uint64_t mine = (KV_KEYS / KV_GROUP - (uint64_t)id + (uint64_t)n - 1) / (uint64_t)n;

	for (long i = zoo_share(r->opts->ops, n, id); i > 0; i--) {
		int op = zoo_pick(&rng, r->share, 3);
		uint64_t x = zoo_rand(&rng) >> 16;

		/* Every second operation goes to one key of a group: keys that many threads read while they are written. */
		if (x >> 40 & 1)
			x -= x % KV_GROUP;
		uint64_t own = ((x / KV_GROUP % mine) * (uint64_t)n + (uint64_t)id) * KV_GROUP + x % KV_GROUP;

		if (op == 1)
			kv_read(r->store, id, x % KV_KEYS, seen);
		else
			kv_write(r->store, id, own, op == 2);
	}
}

/* Runs the workload; the mix is put/get/remove. */
static inline void kv_workload(const struct kv_store *s, const struct zoo_opts *o)
{
	struct kv_run r = { .store = s, .opts = o, .share = { 60, 25, 15 } };

	if (o->threads > KV_THREADS)
		zoo_fail("at most %d threads", KV_THREADS);
	zoo_shares(o->mix, r.share, 3);
	zoo_threads(o->threads, kv_worker, &r);
}

/* One line that is the same for the same command line on the same pool, with one thread. */
static inline void kv_summary(const char *name, const struct zoo_opts *o, const struct kv_ledger *l)
{
	int keys = 0;

	for (int k = 0; k < KV_KEYS; k++)
		keys += l->acked[k] & 1;
	printf("%s: %ld operations, %d keys, digest %08x\n", name, o->ops, keys, zoo_crc32(l->acked, sizeof l->acked));
}

#endif
