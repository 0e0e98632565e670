/* Mappings that change their size and place. */
/* show: map unmap */
#include "litmus.h"

int
main(int argc, char **argv)
{
	int fd = open_pm(argv, "pool");
	char *p = map_fd(fd, 0, 0x1000); //~ map pool 0x0 0x1000 rw
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	/* Something is in the way: it has to move. */
	char *wall = mmap(p + 0x1000, 0x1000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	(void)wall;
	char *q = mremap(p, 0x1000, 0x4000, MREMAP_MAYMOVE); //~ unmap pool 0x0 0x1000; map pool 0x0 0x4000 rw
	MUST(q != MAP_FAILED && q != p);
	STORE(q + 0x3000, 2); //~ store 0x3000 8 0200000000000000
	/* what is there now is not PM */
	char *r = mmap(p, 0x1000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	STORE(r, 3);
	/* smaller, in place */
	MUST(mremap(q, 0x4000, 0x2000, 0) == q); //~ unmap pool 0x0 0x4000; map pool 0x0 0x2000 rw
	STORE(q + 0x1000, 4); //~ store 0x1000 8 0400000000000000
	/* the second page alone, to a place of our choice */
	char *to = mmap(NULL, 0x4000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *s = mremap(q + 0x1000, 0x1000, 0x1000, MREMAP_MAYMOVE | MREMAP_FIXED, to); //~ unmap pool 0x1000 0x1000; map pool 0x1000 0x1000 rw
	MUST(s == to);
	STORE(s + 8, 5); //~ store 0x1008 8 0500000000000000
	STORE(q + 8, 6); //~ store 0x8 8 0600000000000000
	MUST(mremap(q, 0x1000, 0x1000000000000, 0) == MAP_FAILED);
	STORE(q + 8, 7); //~ store 0x8 8 0700000000000000
	return 0;
}
