// A shop's catalogue as a log, with libpmem: `set ITEM PRICE STOCK`, `sell ITEM N ITEM N` (both or none) and `drop ITEM`.
//
// An operation appends entries, one for each item that it changes, and makes them durable with a single fence. An entry counts
// if its checksum is right and the entry that ends its operation counts, too. The index is in DRAM; opening the pool builds it
// from the log, up to the first operation that is not whole.
#include <libpmem.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#ifndef BUG
#define BUG 0
#endif

namespace {

constexpr std::size_t POOL_SIZE = 64 << 10;

// Flags of an entry: it is the last one of its operation; the item is no longer there.
constexpr std::uint64_t LAST = 1, DROPPED = 2;

// Two lines, whose words are stored in this order.
struct alignas(64) Entry {
	std::uint64_t number; // from one
	std::uint64_t flags;
	std::uint64_t item; // up to eight letters
	std::uint64_t price;
	std::uint64_t sum; // of all other words
	alignas(64) std::uint64_t stock;

	std::uint64_t checksum() const
	{
		std::uint64_t hash = 0xcbf29ce484222325;

		for (std::uint64_t word : { number, flags, item, price, BUG == 1 ? 0 : stock }) // BUG(1): leaves out the stock
			hash = (hash ^ word) * 0x100000001b3 + 1;
		return hash;
	}
};

constexpr std::size_t ENTRIES = POOL_SIZE / sizeof(Entry);
constexpr std::size_t LONGEST = 3; // entries of an operation

template <typename Word> void store(Word &word, Word value)
{
	__atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

std::uint64_t word_of(const std::string &text)
{
	std::uint64_t word = 0;

	text.copy(reinterpret_cast<char *>(&word), sizeof word);
	return word;
}

class Catalog {
public:
	explicit Catalog(const char *path)
	{
		log = static_cast<Entry *>(pmem_map_file(path, POOL_SIZE, PMEM_FILE_CREATE, 0644, nullptr, nullptr));
		if (log)
			replay();
	}

	bool is_open() const { return log; }

	bool set(const std::string &item, std::uint64_t price, std::uint64_t stock)
	{
		auto found = index.find(item);

		if (BUG == 4 && found != index.end()) { // BUG(4): in place; until the checksum is right again, the log ends there
			Entry &entry = *found->second;

			store(entry.stock, stock); // BLAME(4)
			pmem_persist(&entry.stock, sizeof entry.stock); // BLAME(4)
			store(entry.price, price); // BLAME(4)
			store(entry.sum, entry.checksum()); // BLAME(4)
			pmem_persist(&entry.price, sizeof entry.price + sizeof entry.sum); // BLAME(4)
			return true;
		}
		return append({ { 0, 0, word_of(item), price, 0, stock } });
	}

	bool sell(const std::string &one, std::uint64_t n, const std::string &other, std::uint64_t m)
	{
		auto a = index.find(one), b = index.find(other);

		if (a == index.end() || b == index.end() || a == b || a->second->stock < n || b->second->stock < m)
			return false;
		Entry first = *a->second, second = *b->second;
		first.stock -= n;
		second.stock -= m;
		return append({ first, second });
	}

	bool drop(const std::string &item)
	{
		auto found = index.find(item);

		if (found == index.end())
			return false;
		Entry entry = *found->second;
		entry.flags = DROPPED;
		if (BUG == 3) { // BUG(3): appended together with the next operation, or at the end
			waiting = entry; // BLAME(3)
			index.erase(found);
			return true;
		}
		return append({ entry });
	}

	void close()
	{
		append({});
	}

	void dump() const
	{
		for (const auto &[item, entry] : index) {
			std::cout << item << ".price " << entry->price << '\n';
			std::cout << item << ".stock " << entry->stock << '\n';
		}
	}

private:
	bool append(std::vector<Entry> entries)
	{
		if (waiting)
			entries.insert(entries.begin(), *waiting);
		waiting.reset();
		if (entries.empty() || used + entries.size() > ENTRIES)
			return false;
		for (std::size_t i = 0; i < entries.size(); i++) {
			Entry &from = entries[i], &to = log[used + i];
			from.number = used + i + 1;
			from.flags = (from.flags & DROPPED) | (i + 1 == entries.size() ? LAST : 0);
			store(to.number, from.number); // BLAME(2, 3, 5)
			store(to.flags, from.flags); // BLAME(2, 3, 5)
			store(to.item, from.item); // BLAME(2, 3, 5)
			store(to.price, from.price); // BLAME(2, 3, 5)
			store(to.stock, from.stock); // BLAME(1, 2, 3, 5)
			store(to.sum, from.checksum()); // BLAME(1, 2, 3, 5)
			pmem_flush(&to, sizeof to); // BLAME(1, 2, 5)
		}
		if (BUG != 2) // BUG(2): the reply does not wait for the flushes
			pmem_drain(); // BLAME(1, 5)
		for (std::size_t end = used + entries.size(); used < end; used++)
			apply(log[used]);
		return true;
	}

	void apply(Entry &entry)
	{
		const char *letters = reinterpret_cast<const char *>(&entry.item);
		std::string item(letters, strnlen(letters, sizeof entry.item));

		if (entry.flags & DROPPED)
			index.erase(item);
		else
			index[item] = &entry;
	}

	void replay()
	{
		std::size_t end = 0;

		while (end < ENTRIES && log[end].number == end + 1 && log[end].sum == log[end].checksum()) { // BLAME(1, 4)
			end++;
			// BUG(5): an operation counts as far as it got
			if (!(log[end - 1].flags & LAST) && BUG != 5)
				continue;
			for (; used < end; used++)
				apply(log[used]);
		}
		// What is left of an operation must not join the next one.
		for (end = used; end < ENTRIES && end < used + LONGEST; end++) {
			if (log[end].number) {
				store(log[end].number, std::uint64_t(0));
				pmem_persist(&log[end].number, sizeof log[end].number);
			}
		}
	}

	Entry *log = nullptr;
	std::size_t used = 0;
	std::map<std::string, Entry *> index;
	std::optional<Entry> waiting; // only with a bug
};

} // namespace

int main(int argc, char **argv)
{
	std::string line;

	if (argc != 2 && (argc != 3 || std::string("dump") != argv[2])) {
		std::cerr << "usage: " << argv[0] << " POOL [dump]\n";
		return 2;
	}
	Catalog catalog(argv[1]);
	if (!catalog.is_open()) {
		perror(argv[1]);
		return 1;
	}
	if (argc == 3) {
		catalog.dump();
		return 0;
	}
	while (std::getline(std::cin, line)) {
		std::istringstream words(line);
		std::string verb, a, b;
		std::uint64_t n = 0, m = 0;
		bool done = false;

		words >> verb;
		if (verb == "set" && words >> a >> n >> m)
			done = catalog.set(a, n, m);
		else if (verb == "sell" && words >> a >> n >> b >> m)
			done = catalog.sell(a, n, b, m);
		else if (verb == "drop" && words >> a)
			done = catalog.drop(a);
		// A bare system call: the lock that a stream has would order flushes as a fence does.
		const char *answer = done ? "ok\n" : "refused\n";
		if (write(1, answer, strlen(answer)) < 0)
			return 2;
	}
	catalog.close();
	return 0;
}
