/* Everything that no two runs agree on, stored to PM. */
#include "litmus.h"
#include <sys/random.h>
#include <sys/time.h>
#include <time.h>

static char *p;
static size_t at;

static void
keep(const void *value, size_t len)
{
	memcpy(p + at, value, len);
	at += (len + 7) / 8 * 8;
	__asm__ volatile("sfence" ::: "memory");
}

static void
keep_file(const char *path, size_t len)
{
	char bytes[64];
	int fd = open(path, O_RDONLY);
	MUST(fd >= 0 && read(fd, bytes, len) == (ssize_t)len);
	close(fd);
	keep(bytes, len);
}

int
main(int argc, char **argv)
{
	struct timespec now;
	struct timeval day;
	uint64_t word;
	int local;
	p = pool(argv, "pool");

	time_t seconds = time(NULL);
	keep(&seconds, sizeof seconds);
	clock_gettime(CLOCK_REALTIME, &now);
	keep(&now, sizeof now);
	clock_gettime(CLOCK_MONOTONIC, &now);
	keep(&now, sizeof now);
	gettimeofday(&day, NULL);
	keep(&day, sizeof day);
	clock_t used = clock();
	keep(&used, sizeof used);

	MUST(getrandom(&word, sizeof word, 0) == sizeof word);
	keep(&word, sizeof word);
	srand(word);
	int number = rand();
	keep(&number, sizeof number);
	MUST(getentropy(&word, sizeof word) == 0);
	keep(&word, sizeof word);
	keep_file("/dev/urandom", 16);
	keep_file("/proc/sys/kernel/random/uuid", 36);

	uint32_t low, high;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	keep(&low, sizeof low);
	keep(&high, sizeof high);
	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high) : : "rcx");
	keep(&low, sizeof low);

	/* addresses: of the stack, the heap, the program, a library, the pool, the canary */
	void *addresses[] = {&local, malloc(100), malloc(1 << 20), (void *)main, (void *)printf, p, argv, getenv("PATH")};
	keep(addresses, sizeof addresses);
	__asm__ volatile("movq %%fs:0x28, %0" : "=r"(word));
	keep(&word, sizeof word);
	return 0;
}
