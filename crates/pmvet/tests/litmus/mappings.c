/* Mappings that come and go. */
/* show: file map unmap */
#include "litmus.h"

#define RW (PROT_READ | PROT_WRITE)

int
main(int argc, char **argv)
{
	/* two files */
	char *p = pool(argv, "pool"); //~ file pool 0x4000; map pool 0x0 0x4000 rw
	char *q = pool(argv, "pool2"); //~ file pool2 0x4000; map pool2 0x0 0x4000 rw
	STORE(p + 0x40, 1); //~ store 0x40 8 0100000000000000
	STORE(q + 0x40, 2); //~ store pool2+0x40 8 0200000000000000

	/* a page in the middle goes */
	MUST(munmap(p + 0x1000, 0x1000) == 0); //~ unmap pool 0x1000 0x1000
	STORE(p + 0xff8, 3); //~ store 0xff8 8 0300000000000000
	STORE(p + 0x2000, 4); //~ store 0x2000 8 0400000000000000
	/* and something else takes its place: no PM */
	char *r = mmap(p + 0x1000, 0x1000, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	STORE(r, 5);
	/* the rest at once, with what lies between */
	MUST(munmap(p, 0x4000) == 0); //~ unmap pool 0x2000 0x2000; unmap pool 0x0 0x1000

	/* and again, from another offset */
	int fd = open_pm(argv, "pool");
	p = map_fd(fd, 0x1000, 0x2000); //~ map pool 0x1000 0x2000 rw
	STORE(p, 6); //~ store 0x1000 8 0600000000000000

	/* a second mapping of the same bytes */
	char *s = map_fd(fd, 0, 0x4000); //~ map pool 0x0 0x4000 rw
	STORE(s + 0x1008, 7); //~ store 0x1008 8 0700000000000000
	STORE(p + 0x8, 8); //~ store 0x1008 8 0800000000000000
	STORE(s + 0x1008, 9); //~ store 0x1008 8 0900000000000000
	MUST(*(uint64_t *)(p + 8) == 9); //~ [load 0x1008 8]

	/* into a reservation */
	char *reserved = mmap(NULL, 0x10000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(reserved != MAP_FAILED);
	char *t = mmap(reserved + 0x4000, 0x4000, RW, MAP_SHARED | MAP_FIXED, fd, 0); //~ map pool 0x0 0x4000 rw
	MUST(t == reserved + 0x4000);
	STORE(t + 0x80, 10); //~ store 0x80 8 0a00000000000000
	/* another part of the file over that */
	t = mmap(reserved + 0x5000, 0x1000, RW, MAP_SHARED | MAP_FIXED, fd, 0x3000); //~ unmap pool 0x1000 0x1000; map pool 0x3000 0x1000 rw
	STORE(t + 0x80, 11); //~ store 0x3080 8 0b00000000000000
	/* volatile memory over all of it */
	t = mmap(reserved, 0x10000, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); //~ unmap pool 0x2000 0x2000; unmap pool 0x3000 0x1000; unmap pool 0x0 0x1000
	STORE(t + 0x4080, 12);

	/* not shared, not written, not a file */
	char *u = mmap(NULL, 0x4000, RW, MAP_PRIVATE, fd, 0); //~ [file-read 0x0 0x4000]
	STORE(u + 0xc0, 13);
	u = mmap(NULL, 0x4000, PROT_READ, MAP_SHARED, fd, 0); //~ map pool 0x0 0x4000 ro
	MUST(u[0x80] == 10); //~ [load 0x80 1]
	u = mmap(NULL, 0x4000, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	STORE(u, 14);

	/* a mapping that fails, and one that is given back twice */
	MUST(mmap(NULL, 0x1000, RW, MAP_SHARED, fd, 0x123) == MAP_FAILED);
	MUST(munmap(s, 0x4000) == 0); //~ unmap pool 0x0 0x4000
	MUST(munmap(s, 0x4000) == 0);
	/* given back over something else: a length that is not a whole page */
	MUST(munmap(q, 0x3001) == 0); //~ unmap pool2 0x0 0x4000
	return 0;
}
