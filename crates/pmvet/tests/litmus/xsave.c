/* Processor state saved to PM: pmvet cannot say which bytes change, and says that. */
#include "litmus.h"

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	char *area = p + PAGE;

	X("movb $1, 0x0(%[p])");                              //~ store 0x0 1 01
	__asm__ volatile("fxsave64 (%0)" :: "r"(area) : "memory"); //~ unsupported 0x1000
	__asm__ volatile("xsave64 (%0)" :: "r"(area), "a"(3), "d"(0) : "memory"); //~ unsupported 0x1000
	X("movb $2, 0x1(%[p])");                              //~ store 0x1 1 02
	return 0;
}
