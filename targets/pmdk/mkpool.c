/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * mkpool.c -- makes an empty libpmemobj pool of the smallest size, or as large
 * as FILE says, if it is there and describes a pool of several files
 *
 * usage: mkpool LAYOUT FILE
 *
 * For examples that only open pools; saves a dependency on pmempool(1).
 */

#include <stdio.h>
#include <unistd.h>
#include <libpmemobj.h>

int
main(int argc, char *argv[])
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s LAYOUT FILE\n", argv[0]);
		return 2;
	}

	size_t size = access(argv[2], F_OK) == 0 ? 0 : PMEMOBJ_MIN_POOL;
	PMEMobjpool *pop = pmemobj_create(argv[2], argv[1], size, 0666);
	if (pop == NULL) {
		fprintf(stderr, "%s: %s\n", argv[2], pmemobj_errormsg());
		return 1;
	}

	pmemobj_close(pop);
	return 0;
}
