/* The call path of an event: nested calls, calls through pointers, jumps out of them. `@` says who called whom. */
#include "litmus.h"
#include <setjmp.h>

#define FUNCTION __attribute__((noipa)) static void

static char *p;
static jmp_buf back;

FUNCTION
inner(int value)
{
	STORE(p, value);
	__asm__ volatile("");
}

FUNCTION
outer(int value)
{
	inner(value);
	STORE(p + 8, value);
}

FUNCTION
by_pointer(void (*function)(int))
{
	function(4);
	__asm__ volatile("");
}

FUNCTION
leaves(int depth)
{
	if (depth > 0)
		leaves(depth - 1);
	else if (depth == 0)
		longjmp(back, 1);
	__asm__ volatile("");
}

int
main(int argc, char **argv)
{
	p = pool(argv, "pool");
	STORE(p, 1); //~ store 0x0 8 0100000000000000 @ main
	inner(2);
	//~ store 0x0 8 0200000000000000 @ inner<main
	outer(3);
	//~ store 0x0 8 0300000000000000 @ inner<outer<main; store 0x8 8 0300000000000000 @ outer<main
	by_pointer(inner);
	//~ store 0x0 8 0400000000000000 @ inner<by_pointer<main
	by_pointer(outer);
	//~ store 0x0 8 0400000000000000 @ inner<outer<by_pointer<main; store 0x8 8 0400000000000000 @ outer<by_pointer<main
	if (setjmp(back) == 0)
		leaves(10);
	STORE(p, 5); //~ store 0x0 8 0500000000000000 @ main
	outer(6);
	//~ store 0x0 8 0600000000000000 @ inner<outer<main; store 0x8 8 0600000000000000 @ outer<main
	for (int i = 0; i < 3; i++)
		if (setjmp(back) == 0)
			leaves(i);
	inner(7);
	//~ store 0x0 8 0700000000000000 @ inner<main
	return 0;
}
