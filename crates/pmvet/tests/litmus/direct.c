/* Direct stores. */
/* needs: movdiri movdir64b */
#include "litmus.h"

__attribute__((used, aligned(64))) static const char from[64] =
	"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+";

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	X("movl $0x11223344, %%eax; movdiri %%eax, 0x4(%[p])"); //~ nt-store 0x4 4 44332211
	X("movl $5, %%eax; movdiri %%rax, 0x8(%[p])");        //~ nt-store 0x8 8 0500000000000000
	X("lea 0x40(%[p]), %%rdi; movdir64b from(%%rip), %%rdi"); //~ nt-store 0x40 64 6162636465666768696a6b6c6d6e6f707172737475767778797a4142434445464748494a4b4c4d4e4f505152535455565758595a303132333435363738392b00
	X("sfence");                                          //~ sfence
	X("lea 0x80(%[p]), %%rdi; movdir64b 0x40(%[p]), %%rdi"); //~ [load 0x40 64]; nt-store 0x80 64 6162636465666768696a6b6c6d6e6f707172737475767778797a4142434445464748494a4b4c4d4e4f505152535455565758595a303132333435363738392b00
	X("mfence");                                          //~ mfence
	return 0;
}
