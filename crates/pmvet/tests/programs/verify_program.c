/* Small PM programs and their recoveries: program POOL WHAT [N]. The pool is a file of zeroes that exists. */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (64 << 10)
#define LINE(n) (pm + (n) * 8)

typedef volatile uint64_t word;
static word *pm;

static void flush(word *at)
{
	_mm_clflush((void *)at);
}

static void persist(word *at)
{
	_mm_clflush((void *)at);
	_mm_sfence();
}

/* The paper's figure 2: x and y share a line. */
#define X LINE(1)[0]
#define Y LINE(1)[1]

static void figure2(void)
{
	Y = 1;
	X = 2;
	flush(&X);
	Y = 3;
	X = 4;
	Y = 5;
	X = 6;
}

/* The paper's figure 4. */
#define DATA LINE(1)[0]
#define CHILD LINE(2)[0]

static void add_child(void)
{
	DATA = 7;
	flush(&DATA);
	CHILD = 1;
	flush(&CHILD);
}

static int read_child(void)
{
	return CHILD && DATA != 7;
}

/* Each operation fills a node of two lines, leaves a line that nobody reads behind, and commits. */
#define HEAD LINE(0)[0]
#define NODE(i) LINE(64 + 2 * (i))
#define SCRATCH(i) LINE(512 + (i))

static void commit(uint64_t operations)
{
	for (uint64_t i = 1; i <= operations; i++) {
		for (int w = 0; w < 16; w++)
			NODE(i)[w] = i;
		SCRATCH(i)[0] = i;
		flush(NODE(i));
		flush(NODE(i) + 8);
		_mm_sfence();
		HEAD = i;
		persist(&HEAD);
	}
}

static int committed(void)
{
	for (uint64_t i = 1; i <= HEAD; i++)
		for (int w = 0; w < 16; w++)
			if (NODE(i)[w] != i)
				return 1;
	return 0;
}

/* Nothing orders data before flag. */
static void unordered(void)
{
	LINE(1)[0] = 1;
	LINE(2)[0] = 1;
	flush(LINE(2));
	flush(LINE(1));
}

static int is_torn(void)
{
	return LINE(2)[0] && !LINE(1)[0];
}

/* Repairs what it finds, in order, and leaves all of it in the cache. */
static void repair(void)
{
	if (!LINE(2)[0]) {
		LINE(1)[0] = 1;
		LINE(2)[0] = 1;
	}
}

/* The data is only summed up, and counts only if the sum is right. */
#define SUMMED 12

static void summed(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < SUMMED * 8; i++)
		sum += LINE(1)[i] = i + 1;
	LINE(0)[0] = sum;
	for (int i = 0; i <= SUMMED; i++)
		flush(LINE(i));
}

static int sum_up(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < SUMMED * 8; i++)
		sum += LINE(1)[i];
	if (LINE(0)[0] && LINE(0)[0] == sum)
		return LINE(1)[0] != 1;
	return 0;
}

static void *wait_for_ever(void *unused)
{
	pause();
	return unused;
}

static void *check(void *result)
{
	*(int *)result = is_torn();
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "";
	pthread_t thread;
	int fd, status = 0;

	if (!strcmp(what, "with-threads"))
		pthread_create(&thread, NULL, wait_for_ever, NULL);
	fd = open(argv[1], O_RDWR);
	pm = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || pm == MAP_FAILED)
		return 2;
	if (!strcmp(what, "figure2"))
		figure2();
	else if (!strcmp(what, "read-x"))
		return X > 6;
	else if (!strcmp(what, "read-x-y"))
		return X > 6 || Y > 6;
	else if (!strcmp(what, "figure4"))
		add_child();
	else if (!strcmp(what, "read-child"))
		return read_child();
	else if (!strcmp(what, "commit"))
		commit(strtoul(argv[3], NULL, 10));
	else if (!strcmp(what, "committed"))
		return committed();
	else if (!strcmp(what, "unordered"))
		unordered();
	else if (!strcmp(what, "elsewhere"))
		persist(LINE(3));
	else if (!strcmp(what, "repair")) {
		int torn = is_torn();

		repair();
		return torn;
	} else if (!strcmp(what, "check") || !strcmp(what, "with-threads"))
		return is_torn();
	else if (!strcmp(what, "abort") && is_torn())
		abort();
	else if (!strcmp(what, "fault") && is_torn())
		*(volatile int *)8 = 1;
	else if (!strcmp(what, "handled") && is_torn()) {
		signal(SIGSEGV, (void (*)(int))_exit);
		*(volatile int *)8 = 1;
	} else if (!strcmp(what, "hang") && is_torn())
		for (;;)
			pause();
	else if (!strcmp(what, "in-a-child")) {
		if (!fork())
			_exit(is_torn());
		wait(&status);
		return WEXITSTATUS(status);
	} else if (!strcmp(what, "in-a-thread")) {
		pthread_create(&thread, NULL, check, &status);
		pthread_join(thread, NULL);
		return status;
	} else if (!strcmp(what, "leaves-a-thread")) {
		pthread_create(&thread, NULL, wait_for_ever, NULL);
		return is_torn();
	} else if (!strcmp(what, "leaves-a-child")) {
		if (!fork())
			for (;;)
				pause();
		return is_torn();
	} else if (!strcmp(what, "summed"))
		summed();
	else if (!strcmp(what, "sum-up"))
		return sum_up();
	return 0;
}
