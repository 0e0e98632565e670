/* C++ exceptions: after one is caught, the path is the catcher's. */
#include "litmus.h"
#include <stdexcept>

#define FUNCTION extern "C" __attribute__((noipa)) void

static char *p;

FUNCTION
store(int value)
{
	STORE(p, value);
	__asm__ volatile("");
}

struct Guard {
	~Guard() { store(9); }
};

FUNCTION
throws(int depth)
{
	if (depth == 0)
		throw std::runtime_error("out");
	throws(depth - 1);
	__asm__ volatile("");
}

FUNCTION
cleans_up()
{
	Guard guard;
	throws(3);
	__asm__ volatile("");
}

FUNCTION
catches(int value)
{
	try {
		throws(5);
	} catch (const std::runtime_error &) {
		STORE(p + 8, value);
		store(value);
	}
	STORE(p + 16, value);
}

int
main(int argc, char **argv)
{
	p = pool(argv, "pool");
	try {
		throws(2);
	} catch (...) {
		STORE(p, 1); //~ store 0x0 8 0100000000000000 @ main
	}
	store(2);
	//~ store 0x0 8 0200000000000000 @ store<main
	catches(3);
	//~ store 0x8 8 0300000000000000 @ catches<main; store 0x0 8 0300000000000000 @ store<catches<main; store 0x10 8 0300000000000000 @ catches<main
	try {
		cleans_up();
		//~ store 0x0 8 0900000000000000 @ store<*
	} catch (...) {
		STORE(p, 4); //~ store 0x0 8 0400000000000000 @ main
	}
	return 0;
}
