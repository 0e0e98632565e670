/* A PM file that is deleted while it is mapped lives on until it is unmapped. */
#include "litmus.h"

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	X("movb $1, 0x0(%[p])"); //~ store 0x0 1 01
	MUST(unlink(in(argv[1], "no such file")) == -1);
	MUST(unlink(in(argv[1], "pool")) == 0); //~ file-unlink
	X("movb $2, 0x0(%[p])"); //~ store 0x0 1 02
	return 0;
}
