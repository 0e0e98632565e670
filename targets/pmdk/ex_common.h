/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * ex_common.h -- what PMDK's examples expect from the header of that name,
 * which the Debian packages leave out.
 */

#ifndef EX_COMMON_H
#define EX_COMMON_H

#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#define CREATE_MODE_RW (S_IWUSR | S_IRUSR)

#ifndef MIN
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#endif

/* file_exists -- 0 if the path exists, as the examples test it */
static inline int
file_exists(const char *path)
{
	return access(path, F_OK);
}

/* find_last_set_64 -- index of the highest set bit, -1 for none */
static inline int
find_last_set_64(uint64_t v)
{
	return v == 0 ? -1 : 63 - __builtin_clzll(v);
}

/*
 * Three examples open a path written into their source. Built with
 * EX_FIXED_POOL they take it from the first argument instead, so that a pool
 * can be put on tmpfs; their source stays as it is.
 */
#ifdef EX_FIXED_POOL
#include <libpmem.h>
#include <libpmemobj.h>

static const char *ex_pool_arg;

/* glibc passes main's arguments to constructors */
__attribute__((constructor)) static void
ex_take_pool(int argc, char **argv)
{
	ex_pool_arg = argc > 1 ? argv[1] : 0;
}

static inline const char *
ex_pool(const char *path)
{
	return ex_pool_arg ? ex_pool_arg : path;
}

#define pmemobj_create(path, ...) pmemobj_create(ex_pool(path), __VA_ARGS__)
#define pmemobj_open(path, ...) pmemobj_open(ex_pool(path), __VA_ARGS__)
#define pmem_map_file(path, ...) pmem_map_file(ex_pool(path), __VA_ARGS__)
#endif

#endif
