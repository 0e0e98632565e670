/* Three thousand calls deep: the shadow stack holds four thousand. */
#include "litmus.h"

static char *p;

__attribute__((noipa)) static void
deeper(int depth)
{
	if (depth > 1)
		deeper(depth - 1);
	else
		STORE(p, depth);
	/* not at every depth: the stacks of all of them together would be too much to print */
	if (depth % 500 == 0)
		STORE(p + 8, depth);
	__asm__ volatile("");
}

int
main(int argc, char **argv)
{
	p = pool(argv, "pool");
	deeper(3000);
	STORE(p + 16, 1);
	return 0;
}
