/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * mkpool.c -- makes an empty libpmemobj pool of the smallest size
 *
 * usage: mkpool LAYOUT FILE
 *
 * For examples that only open pools; saves a dependency on pmempool(1).
 */

#include <stdio.h>
#include <libpmemobj.h>

int
main(int argc, char *argv[])
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s LAYOUT FILE\n", argv[0]);
		return 2;
	}

	PMEMobjpool *pop = pmemobj_create(argv[2], argv[1], PMEMOBJ_MIN_POOL,
			0666);
	if (pop == NULL) {
		fprintf(stderr, "%s: %s\n", argv[2], pmemobj_errormsg());
		return 1;
	}

	pmemobj_close(pop);
	return 0;
}
