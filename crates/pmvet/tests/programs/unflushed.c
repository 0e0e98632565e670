/*
 * unflushed -- data in PM that is not persistent when the program ends
 *
 * usage: unflushed WAY POOL
 *
 * one-line   the last value and its check, in one cache line, are not flushed: a crash may take the check, or both,
 *            but never the value alone, which is all that recovery could not stand
 * log        records are never flushed, only their count is: after a crash recovery finds the count without the records
 * scratch    the same, but recovery never looks at the records
 */

#include <emmintrin.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 5
#define SIZE (1 << 16)

struct pool {
	_Alignas(64) volatile uint64_t value;
	volatile uint64_t check;
	_Alignas(64) volatile uint64_t count;
	_Alignas(64) volatile uint64_t record[64];
};

static void persist(volatile void *at)
{
	_mm_clflush((const void *)at);
	_mm_sfence();
}

static int one_line(struct pool *pm)
{
	if (pm->check > pm->value)
		return 5;
	for (int i = 1; i <= ROUNDS; i++) {
		pm->value++;
		pm->check = pm->value;
		if (i < ROUNDS)
			persist(&pm->value);
	}
	return 0;
}

static int append(struct pool *pm, int look)
{
	for (uint64_t i = 0; look && i < pm->count; i++)
		if (pm->record[i] != i + 1)
			return 5;
	for (int i = 0; i < ROUNDS && pm->count < 64; i++) {
		pm->record[pm->count] = pm->count + 1;
		pm->count++;
		persist(&pm->count);
	}
	return 0;
}

int main(int argc, char **argv)
{
	int fd = argc == 3 ? open(argv[2], O_RDWR | O_CREAT, 0644) : -1;

	if (fd < 0 || ftruncate(fd, SIZE)) {
		perror("unflushed");
		return 9;
	}
	struct pool *pm = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (pm == MAP_FAILED)
		return 9;
	return strcmp(argv[1], "one-line") ? append(pm, !strcmp(argv[1], "log")) : one_line(pm);
}
