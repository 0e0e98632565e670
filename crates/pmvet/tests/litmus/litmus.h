/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the litmus programs share. A program is called with the directory of its PM files (with two files of zeros,
 * `pool` and `pool2`, four pages each) and a directory that is not PM.
 *
 * The events that a line must give stand behind it:
 *
 *   //~ store 0x40 8 0100000000000000; sfence     by the main thread
 *   //~2 clwb 0x40                                by thread 2
 *   //~ [load 0x40 8]                             only in runs with --loads
 *
 * Offsets are those in the file `pool`; another file is named: `pool2+0x40`. Events must come in the order of
 * the file's text, for each thread; those that an instruction stands for must carry its line.
 */
#ifndef LITMUS_H
#define LITMUS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define PAGE 4096
#define POOL (4 * PAGE)

#define MUST(condition)                                                                   \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,            \
				#condition, strerror(errno));                             \
			_exit(99);                                                        \
		}                                                                         \
	} while (0)

/* The name of a file in one of the two directories. Lives as long as the program. */
static inline const char *
in(const char *directory, const char *name)
{
	char *path;
	MUST(asprintf(&path, "%s/%s", directory, name) > 0);
	return path;
}

static inline int
open_pm(char **argv, const char *name)
{
	int fd = open(in(argv[1], name), O_RDWR);
	MUST(fd >= 0);
	return fd;
}

static inline char *
map_fd(int fd, off_t offset, size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
	MUST(p != MAP_FAILED);
	return (char *)p;
}

/* Maps one of the two pools. */
static inline char *
pool(char **argv, const char *name)
{
	int fd = open_pm(argv, name);
	char *p = map_fd(fd, 0, POOL);
	close(fd);
	return p;
}

/* Instructions that no compiler changes. %[p] is the start of the pool. */
#define X(text)                                                                                                        \
	__asm__ volatile(text                                                                                         \
			 :                                                                                            \
			 : [p] "r"(p)                                                                                 \
			 : "memory", "cc", "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "xmm0", "xmm1", "xmm2", "xmm3")

/* One 8-byte store and nothing else. Inlined even without optimisation, so that the line is the caller's. */
#define STORE(address, number)                                                                                         \
	__asm__ volatile("movq %1, %0" : "=m"(*(uint64_t *)(address)) : "r"((uint64_t)(number)))

#endif
