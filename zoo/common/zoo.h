/*
 * Helpers shared by the programs of the zoo: command line, pool mapping, cache-line flushes and fences,
 * random numbers, checksums, failure and threads. Header only, so that a program is one translation unit
 * and its binary holds nothing but the code under test.
 */
#ifndef ZOO_H
#define ZOO_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MAP_SHARED_VALIDATE
#define MAP_SHARED_VALIDATE 0x03
#endif
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif

#define ZOO_LINE 64          /* the unit in which persistent memory is written back */
#define ZOO_MAX_THREADS 64

/* What every program accepts: POOL [-n OPS] [-t THREADS] [-s SEED] [-m MIX] [-i]. */
struct zoo_opts {
	const char *pool;
	long ops;
	int threads;
	uint64_t seed;
	const char *mix; /* program specific; NULL when not given */
};

/* Stores one aligned word, never torn, merged or moved ahead of earlier stores by the compiler. */
#define zoo_store(ptr, val) __atomic_store_n((ptr), (val), __ATOMIC_RELEASE)

/* Loads one aligned word that another thread may be storing. */
#define zoo_load(ptr) __atomic_load_n((ptr), __ATOMIC_ACQUIRE)

/* Prints a message on stderr and exits with status 1: the verdict "inconsistent pool". */
__attribute__((format(printf, 1, 2), cold))
static _Noreturn inline void zoo_fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	/* _exit, because other threads may still be running and exit handlers would race with them. */
	fflush(stderr);
	_exit(1);
}

/* With -i, random numbers are made of the bytes of standard input, one of each, so that a fuzzer can choose them. */
static struct {
	int given;
	size_t len, at;
	unsigned char bytes[1 << 12];
} zoo_input;

/* Parses the command line into o, with defaults for what is not given; exits with status 2 on misuse. */
static inline void zoo_parse(int argc, char **argv, struct zoo_opts *o)
{
	int c;

	*o = (struct zoo_opts){ .ops = 100, .threads = 1, .seed = 1 };
	while ((c = getopt(argc, argv, "n:t:s:m:i")) != -1) {
		switch (c) {
		case 'i': zoo_input.given = 1; break;
		case 'n': o->ops = strtol(optarg, NULL, 10); break;
		case 't': o->threads = (int)strtol(optarg, NULL, 10); break;
		case 's': o->seed = strtoull(optarg, NULL, 0); break;
		case 'm': o->mix = optarg; break;
		default: goto usage;
		}
	}
	if (optind != argc - 1 || o->ops < 0 || o->threads < 1 || o->threads > ZOO_MAX_THREADS)
		goto usage;
	o->pool = argv[optind];
	return;
usage:
	fprintf(stderr, "usage: %s POOL [-n OPS] [-t THREADS] [-s SEED] [-m MIX] [-i]\n", argv[0]);
	exit(2);
}

/* Maps at least size bytes of the pool file, creating or growing it; *fresh tells that it was empty. */
static inline void *zoo_map(const char *path, size_t size, int *fresh)
{
	struct stat st;
	int fd = open(path, O_CREAT | O_RDWR, 0644);

	if (fd < 0 || fstat(fd, &st) < 0)
		zoo_fail("%s: %s", path, strerror(errno));
	*fresh = st.st_size == 0;
	if ((size_t)st.st_size < size && ftruncate(fd, (off_t)size) < 0)
		zoo_fail("%s: %s", path, strerror(errno));
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
	/* Only DAX file systems grant MAP_SYNC; elsewhere the program still runs, for testing. */
	if (p == MAP_FAILED)
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		zoo_fail("%s: mmap: %s", path, strerror(errno));
	close(fd);
	return p;
}

enum zoo_flush_kind { ZOO_CLFLUSH, ZOO_CLFLUSHOPT, ZOO_CLWB };
static enum zoo_flush_kind zoo_flush_kind;

/* Picks the cheapest flush of this processor, before main so that threads never race for it. */
__attribute__((constructor)) static void zoo_flush_init(void)
{
	unsigned a, b, c, d;

	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return;
	if (b & (1u << 24))
		zoo_flush_kind = ZOO_CLWB;
	else if (b & (1u << 23))
		zoo_flush_kind = ZOO_CLFLUSHOPT;
}

/* Starts the write-back of every cache line that [p, p + n) touches; durable only after zoo_fence. */
static inline void zoo_flush(const void *p, size_t n)
{
	char *end = (char *)p + n;

	__asm__ volatile("" ::: "memory");
	for (char *l = (char *)((uintptr_t)p & ~(uintptr_t)(ZOO_LINE - 1)); l < end; l += ZOO_LINE) {
		switch (zoo_flush_kind) {
		case ZOO_CLWB: _mm_clwb(l); break;
		case ZOO_CLFLUSHOPT: _mm_clflushopt(l); break;
		default: _mm_clflush(l); break;
		}
	}
	__asm__ volatile("" ::: "memory");
}

/* Waits for the flushes and non-temporal stores issued before it. */
static inline void zoo_fence(void)
{
	__asm__ volatile("" ::: "memory");
	_mm_sfence();
	__asm__ volatile("" ::: "memory");
}

/* Makes [p, p + n) durable: flush, then fence. */
static inline void zoo_persist(const void *p, size_t n)
{
	zoo_flush(p, n);
	zoo_fence();
}

/* Copies n bytes (a multiple of 8, d aligned to 8), each word in one store: memcpy may store bytes twice. */
static inline void zoo_copy(void *d, const void *s, size_t n)
{
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, (const char *)s + i, 8);
		zoo_store((uint64_t *)(void *)((char *)d + i), w);
	}
}

/* Copies n bytes (a multiple of 8, d aligned to 8) past the cache; durable after zoo_fence. */
static inline void zoo_copy_nt(void *d, const void *s, size_t n)
{
	const char *src = s;
	char *dst = d;

	for (size_t i = 0; i + 8 <= n; i += 8) {
		long long w;

		memcpy(&w, src + i, 8);
		_mm_stream_si64((long long *)(void *)(dst + i), w);
	}
}

/* A bijective scramble of x: values and check words that are a function of the key. */
static inline uint64_t zoo_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* The next number of a xorshift64* sequence; any seed will do. */
static inline uint64_t zoo_rand(uint64_t *state)
{
	if (zoo_input.given)
		return zoo_mix(zoo_input.at < zoo_input.len ? zoo_input.bytes[zoo_input.at++] : 0);
	uint64_t x = *state ? *state : 0x9e3779b97f4a7c15u;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 0x2545f4914f6cdd1du;
}

/* CRC-32 (IEEE, reflected) of n bytes; bitwise, as the records of the zoo are short. */
static inline uint32_t zoo_crc32(const void *p, size_t n)
{
	const unsigned char *b = p;
	uint32_t crc = 0xffffffffu;

	while (n--) {
		crc ^= *b++;
		for (int i = 0; i < 8; i++)
			crc = (crc >> 1) ^ (0xedb88320u & -(crc & 1));
	}
	return ~crc;
}

/* Reads n shares from a mix such as "60/30/10" over the given defaults; exits with status 2 on misuse. */
static inline void zoo_shares(const char *mix, int *share, int n)
{
	const char *s = mix;
	int sum = 0;

	for (int i = 0; i < n; i++) {
		if (s) {
			char *end;
			long v = strtol(s, &end, 10);

			if (end == s || v < 0 || v > 1000000 || *end != (i + 1 < n ? '/' : '\0')) {
				fprintf(stderr, "bad mix %s: want %d shares, like 60/30/10\n", mix, n);
				exit(2);
			}
			share[i] = (int)v;
			s = end + 1;
		}
		sum += share[i];
	}
	if (sum == 0)
		share[0] = 1;
}

/* Picks one of n operations at random, in proportion to their shares. */
static inline int zoo_pick(uint64_t *rng, const int *share, int n)
{
	uint64_t sum = 0, x;

	for (int i = 0; i < n; i++)
		sum += (uint64_t)share[i];
	x = zoo_rand(rng) % sum;
	for (int i = 0; i < n - 1; i++) {
		if (x < (uint64_t)share[i])
			return i;
		x -= (uint64_t)share[i];
	}
	return n - 1;
}

struct zoo_thread {
	void (*fn)(int id, void *arg);
	void *arg;
	int id;
};

static void *zoo_thread_main(void *p)
{
	struct zoo_thread *t = p;

	t->fn(t->id, t->arg);
	return NULL;
}

/* Runs fn(0..n-1, arg) on n threads and waits; one thread is the caller itself, to stay deterministic. */
static inline void zoo_threads(int n, void (*fn)(int id, void *arg), void *arg)
{
	struct zoo_thread t[ZOO_MAX_THREADS];
	pthread_t tid[ZOO_MAX_THREADS];

	if (n < 1 || n > ZOO_MAX_THREADS)
		zoo_fail("cannot run %d threads", n);
	if (n == 1) {
		fn(0, arg);
		return;
	}
	for (int i = 0; i < n; i++) {
		t[i] = (struct zoo_thread){ fn, arg, i };
		int err = pthread_create(&tid[i], NULL, zoo_thread_main, &t[i]);

		if (err)
			zoo_fail("pthread_create: %s", strerror(err));
	}
	for (int i = 0; i < n; i++)
		pthread_join(tid[i], NULL);
}

/* How many of ops operations fall to thread id of n, so that the shares add up to ops. */
static inline long zoo_share(long ops, int n, int id)
{
	/* Read here and not earlier: the pool is open by now. Two bytes make an operation. */
	if (zoo_input.given && id == 0) {
		ssize_t got = read(0, zoo_input.bytes, sizeof(zoo_input.bytes));

		zoo_input.len = got < 0 ? 0 : (size_t)got;
		zoo_input.at = 0;
		ops = (long)zoo_input.len / 2;
	}
	return ops / n + (id < ops % n);
}

#endif
