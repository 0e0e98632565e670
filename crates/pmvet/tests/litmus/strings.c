/* String instructions, alone and repeated, in both directions. */
#include "litmus.h"

__attribute__((used)) static const char from[] = "0123456789abcdefghijklmnopqrstuv";

/* rdi = the pool + a number, rsi = the text above */
#define SET(offset) "lea " #offset "(%[p]), %%rdi; lea from(%%rip), %%rsi; cld; "

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	X(SET(0x00) "movsb");                                 //~ store 0x0 1 30
	X(SET(0x02) "movsw");                                 //~ store 0x2 2 3031
	X(SET(0x04) "movsl");                                 //~ store 0x4 4 30313233
	X(SET(0x08) "movsq");                                 //~ store 0x8 8 3031323334353637
	X(SET(0x10) "movb $0xa1, %%al; stosb");               //~ store 0x10 1 a1
	X(SET(0x12) "movw $0xa2, %%ax; stosw");               //~ store 0x12 2 a200
	X(SET(0x14) "movl $0xa3, %%eax; stosl");              //~ store 0x14 4 a3000000
	X(SET(0x18) "movl $0xa4, %%eax; stosq");              //~ store 0x18 8 a400000000000000
	X(SET(0x20) "std; movb $0xa5, %%al; stosb; stosb; cld"); //~ store 0x20 1 a5; store 0x1f 1 a5

	X(SET(0x40) "movl $5, %%ecx; rep movsb");             //~ store 0x40 5 3031323334
	X(SET(0x48) "movl $2, %%ecx; rep movsq");             //~ store 0x48 16 30313233343536373839616263646566
	X(SET(0x60) "movl $3, %%ecx; movb $0xb1, %%al; rep stosb"); //~ store 0x60 3 b1b1b1
	X(SET(0x68) "movl $2, %%ecx; movl $7, %%eax; rep stosl"); //~ store 0x68 8 0700000007000000
	X(SET(0x70) "movl $2, %%ecx; movl $8, %%eax; rep stosq"); //~ store 0x70 16 08000000000000000800000000000000

	/* nothing to do */
	X(SET(0x80) "xorl %%ecx, %%ecx; rep movsb");
	X(SET(0x80) "xorl %%ecx, %%ecx; rep stosq");

	/* downwards: rdi and rsi start at the last element */
	X(SET(0x83) "add $3, %%rsi; movl $4, %%ecx; std; rep movsb; cld"); //~ store 0x80 4 30313233
	X(SET(0x98) "add $8, %%rsi; movl $2, %%ecx; std; rep movsq; cld"); //~ store 0x90 16 30313233343536373839616263646566
	X(SET(0xa7) "movl $8, %%ecx; movb $0xc1, %%al; std; rep stosb; cld"); //~ store 0xa0 8 c1c1c1c1c1c1c1c1

	/* from PM to PM, overlapping: the first byte runs through */
	X("lea 0x40(%[p]), %%rsi; lea 0x41(%[p]), %%rdi; movl $4, %%ecx; cld; rep movsb"); //~ [load 0x40 4]; store 0x41 4 30303030
	/* from PM to volatile memory and other readers */
	X("lea 0x40(%[p]), %%rsi; lodsb");                    //~ [load 0x40 1]
	X("lea 0x40(%[p]), %%rsi; lea -64(%%rsp), %%rdi; movsl"); //~ [load 0x40 4]

	/* across lines, and across pages: a line is never split */
	X(SET(0xf0) "movl $32, %%ecx; rep movsb");            //~ store 0xf0 32 303132333435363738396162636465666768696a6b6c6d6e6f70717273747576
	X(SET(0x1000) "movl $5000, %%ecx; movb $0x5a, %%al; rep stosb"); //~ store 0x1000 4096 5a*4096; store 0x2000 904 5a*904
	return 0;
}
