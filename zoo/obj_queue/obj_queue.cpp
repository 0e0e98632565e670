/*
 * A queue of messages in a pool of libpmemobj, in C++ over the C functions: a linked list with a link to its end, a ring of the latest
 * numbers, and a name. All of it changes in transactions.
 *
 * The operations come in turn, so that few of them reach everything. What a crash leaves of a pool that was being made is made anew.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cerrno>
#include <unistd.h>
#include <libpmemobj.h>

#ifndef BUG
#define BUG 0
#endif

namespace {

constexpr uint64_t MAGIC = 0x65756575;
constexpr uint64_t RING = 8;

struct message {
	uint64_t number;
	uint64_t check;      // number ^ MAGIC
	PMEMoid next;
};

/// What changes by itself has a line of its own, so that no flush of its neighbours persists it by chance.
struct queue {
	uint64_t magic;
	uint64_t pad0[7];
	PMEMoid head;
	uint64_t pad1[6];
	PMEMoid tail;
	uint64_t pad2[6];
	uint64_t length;
	uint64_t pad3[7];
	uint64_t latest;     // how many numbers went through the ring
	uint64_t sum;        // of the ring
	uint64_t pad4[6];
	uint64_t ring[RING];
	uint64_t version;    // of the name
	char name[24];       // "queue-", and the version
	uint64_t pad5[4];
};

PMEMobjpool *pop;

[[noreturn]] void fail(const char *what)
{
	fprintf(stderr, "obj_queue: %s\n", what);
	_exit(1);
}

template <class T> T *at(PMEMoid oid)
{
	return static_cast<T *>(pmemobj_direct(oid));
}

/// A transaction: what `work` does, or nothing of it.
template <class Work> bool transaction(Work work)
{
	if (pmemobj_tx_begin(pop, nullptr, TX_PARAM_NONE) != 0)
		fail(pmemobj_errormsg());
	work();
	if (pmemobj_tx_stage() == TX_STAGE_WORK)
		pmemobj_tx_commit();
	return pmemobj_tx_end() == 0;
}

class Queue {
	queue *q;

public:
	explicit Queue(queue *in_pool) : q(in_pool) {}

	void push(uint64_t number)
	{
		transaction([&] {
			PMEMoid made = pmemobj_tx_alloc(sizeof(message), 1);
			message *m = at<message>(made);

			m->number = number;
			m->check = number ^ MAGIC;
			m->next = OID_NULL;
			link(made);
			if (BUG != 1)
				TX_ADD_FIELD_DIRECT(q, tail); // BUG(1): the end of the list is not added
			q->tail = made; // BLAME(1)
			TX_ADD_FIELD_DIRECT(q, length);
			q->length++;
			if (BUG == 6)
				TX_ADD_FIELD_DIRECT(q, length); // BUG(6): added before
		});
	}

	/// Lets the last message, or the head of an empty queue, refer to another one.
	void link(PMEMoid made)
	{
		PMEMoid *last = OID_IS_NULL(q->tail) ? &q->head : &at<message>(q->tail)->next;

		if (BUG != 4)
			TX_ADD_DIRECT(last); // BUG(4): the link is not added
		*last = made; // BLAME(4)
	}

	void take()
	{
		if (OID_IS_NULL(q->head))
			return;
		transaction([&] {
			PMEMoid first = q->head;

			TX_ADD_FIELD_DIRECT(q, head);
			q->head = at<message>(first)->next;
			if (OID_IS_NULL(q->head)) {
				TX_ADD_FIELD_DIRECT(q, tail);
				q->tail = OID_NULL;
			}
			if (BUG != 5)
				TX_ADD_FIELD_DIRECT(q, length); // BUG(5): added when it has been changed
			q->length--; // BLAME(5)
			if (BUG == 5)
				TX_ADD_FIELD_DIRECT(q, length);
			pmemobj_tx_free(first);
		});
	}

	/// Gives the first message another number.
	void renumber(uint64_t number)
	{
		if (OID_IS_NULL(q->head))
			return;
		transaction([&] {
			message &m = *at<message>(q->head);

			if (BUG != 3)
				TX_ADD_DIRECT(&m); // BUG(3): the message is not added
			m.number = number; // BLAME(3)
			m.check = number ^ MAGIC; // BLAME(3)
		});
	}

	void note()
	{
		transaction([&] {
			uint64_t i = q->latest % RING;

			TX_ADD_FIELD_DIRECT(q, latest);
			q->latest++;
			TX_ADD_FIELD_DIRECT(q, sum);
			q->sum += q->latest - q->ring[i];
			if (BUG != 2)
				TX_ADD_FIELD_DIRECT(q, ring[i]); // BUG(2): the place in the ring is not added
			q->ring[i] = q->latest; // BLAME(2)
		});
	}

	void rename()
	{
		char name[sizeof(q->name)] = {};

		snprintf(name, sizeof(name), "queue-%016lx", q->version + 1);
		transaction([&] {
			if (BUG != 7)
				TX_ADD_FIELD_DIRECT(q, name); // BUG(7): the name is not added
			memcpy(q->name, name, sizeof(name)); // BLAME(7)
			TX_ADD_FIELD_DIRECT(q, version);
			q->version++;
			if (BUG == 8)
				pmemobj_persist(pop, &q->version, 8); // BUG(8): the commit does that
		});
	}

	void check() const
	{
		char name[sizeof(q->name)] = {};
		uint64_t length = 0;
		PMEMoid last = OID_NULL;

		for (PMEMoid m = q->head; !OID_IS_NULL(m); m = at<message>(m)->next) {
			if (at<message>(m)->check != (at<message>(m)->number ^ MAGIC))
				fail("a message is damaged");
			last = m;
			if (++length > q->length)
				break;
		}
		if (length != q->length)
			fail("the length is wrong");
		if (!OID_EQUALS(last, q->tail))
			fail("the end of the list is not its last message");
		uint64_t sum = 0;

		for (uint64_t number : q->ring)
			sum += number;
		if (sum != q->sum)
			fail("the sum is not that of the ring");
		snprintf(name, sizeof(name), "queue-%016lx", q->version);
		if (q->version && memcmp(name, q->name, sizeof(name)))
			fail("the name is not that of its version");
	}

	bool is_made() const
	{
		return q->magic == MAGIC;
	}

	void make()
	{
		transaction([&] {
			TX_ADD_FIELD_DIRECT(q, magic);
			q->magic = MAGIC;
		});
	}
};

} // namespace

int main(int argc, char **argv)
{
	long ops = 100;
	int c, misused = 0;
	const char *mix = "1/1/1/1/1/1"; // an operation with a share of 0 is left out

	// There is nothing to choose for a seed or an input, and one thread does it all.
	while ((c = getopt(argc, argv, "n:t:s:m:i")) != -1) {
		if (c == 'n')
			ops = strtol(optarg, nullptr, 10);
		if (c == 'm')
			mix = optarg;
		misused |= c == '?';
	}
	misused |= strlen(mix) != 11 || strspn(mix, "0/") == 11;
	if (misused || optind != argc - 1) {
		fprintf(stderr, "usage: %s POOL [-n OPS] [-m MIX]\n", argv[0]);
		return 2;
	}
	const char *pool = argv[optind];
	pop = pmemobj_open(pool, "queue");
	if (pop == nullptr) {
		unlink(pool);
		pop = pmemobj_create(pool, "queue", PMEMOBJ_MIN_POOL, 0644);
	}
	if (pop == nullptr)
		fail(pmemobj_errormsg());
	Queue q(at<queue>(pmemobj_root(pop, sizeof(queue))));
	if (q.is_made())
		q.check();
	else
		q.make();
	for (long i = 0, done = 0; done < ops; i++) {
		if (mix[i % 6 * 2] == '0')
			continue;
		done++;
		switch (i % 6) {
		case 0: q.push(7 + static_cast<uint64_t>(i)); break;
		case 1: q.renumber(3 + static_cast<uint64_t>(i)); break;
		case 2: q.push(5 + static_cast<uint64_t>(i)); break;
		case 3: q.note(); break;
		case 4: q.rename(); break;
		default: q.take(); break;
		}
	}
	q.check();
	pmemobj_close(pop);
	return 0;
}
