/* What a fork server has to cope with: a program that maps a pool, reads a letter and does what it says. */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile unsigned *words[2];

/* Stores by the way of the C library, and without. */
static int sorts(const void *a, const void *b)
{
	*words[*(const int *)a & 1] = 1;
	return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) static void stores(int which)
{
	*words[which] = 1;
	_mm_clflush((void *)words[which]);
	_mm_sfence();
}

__attribute__((noinline)) static void calls(int which)
{
	stores(which);
	int numbers[] = { which, which, which };
	qsort(numbers, 3, sizeof(int), sorts);
}

int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	if (fd < 0 || ftruncate(fd, 4096) != 0)
		return 90;
	volatile unsigned *pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pool == MAP_FAILED)
		return 91;
	char line[16] = "";
	if (read(0, line, sizeof(line) - 1) < 0)
		return 92;
	for (char *at = line; *at >= '0' && *at <= '9'; at++) {
		pool[(*at - '0') * 16]++;
		_mm_clflush((void *)&pool[(*at - '0') * 16]);
		_mm_sfence();
	}
	switch (line[strspn(line, "0123456789")]) {
	case 'a':
		abort();
	case 's':
		*(volatile int *)8 = 1;
	case 'h':
		for (;;)
			pause();
	case 'm':
		for (;;)
			memset(malloc(1 << 20), 1, 1 << 20);
	case 'f':
		if (fork() == 0)
			for (;;)
				pause();
		break;
	/* The same through two mappings, or only through one. */
	case 't':
	case 'u':
		words[0] = words[1] = pool;
		void *second = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (line[0] == 't')
			words[1] = second;
		for (int i = 0; i < 16; i++)
			calls(i >> 1 & 1);
		break;
	/* Other ways to the pool than through the mapping. */
	case 'r':
		if (pread(fd, line, 1, 0) != 1)
			return 93;
		break;
	case 'w':
		if (pwrite(fd, "\1", 1, 64 * 9) != 1)
			return 94;
		break;
	case 'o':
		if (open(argv[1], O_RDONLY) < 0)
			return 95;
		break;
	case 'c':
		if (dup(fd) < 0)
			return 96;
		break;
	case 'd':
		madvise((void *)pool, 4096, MADV_DONTNEED);
		break;
	case 'v':
		if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
			return 97;
	}
	/* What the pool holds, so that a run that starts from another state is noticed. */
	unsigned sum = 0;
	for (int i = 0; i < 10; i++)
		sum += pool[i * 16];
	return sum;
}
