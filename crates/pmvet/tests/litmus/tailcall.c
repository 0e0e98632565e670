/* A function that ends by jumping to another is not on the path any more. */
/* flags: -O2 */
#include "litmus.h"

static char *p;

__attribute__((noipa)) static void
last(int value)
{
	STORE(p, value);
}

__attribute__((noipa)) static void
jumps(int value)
{
	STORE(p + 8, value);
	last(value);
}

__attribute__((noipa)) static void
calls(int value)
{
	jumps(value);
	STORE(p + 16, value);
}

int
main(int argc, char **argv)
{
	p = pool(argv, "pool");
	calls(1);
	//~ store 0x8 8 0100000000000000 @ jumps<calls<main; store 0x0 8 0100000000000000 @ last<calls<main; store 0x10 8 0100000000000000 @ calls<main
	jumps(2);
	//~ store 0x8 8 0200000000000000 @ jumps<main; store 0x0 8 0200000000000000 @ last<main
	STORE(p, 3); //~ store 0x0 8 0300000000000000 @ main
	return 0;
}
