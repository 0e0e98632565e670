/* Loads of every width. */
/* needs: avx */
#include "litmus.h"

__attribute__((naked)) static void
nothing(void)
{
	__asm__("ret");
}

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	X("movb 0x1(%[p]), %%al");                            //~ [load 0x1 1]
	X("movzwl 0x2(%[p]), %%eax");                         //~ [load 0x2 2]
	X("movl 0x4(%[p]), %%eax");                           //~ [load 0x4 4]
	X("movq 0x8(%[p]), %%rax");                           //~ [load 0x8 8]
	X("movslq 0x4(%[p]), %%rax");                         //~ [load 0x4 4]
	X("movups 0x10(%[p]), %%xmm0");                       //~ [load 0x10 16]
	X("movss 0x10(%[p]), %%xmm0");                        //~ [load 0x10 4]
	X("vmovups 0x20(%[p]), %%ymm0; vzeroupper");          //~ [load 0x20 32]
	X("fldt 0x60(%[p]); fstp %%st(0)");                   //~ [load 0x60 10]
	X("addq 0x8(%[p]), %%rax");                           //~ [load 0x8 8]
	X("testb $1, 0x8(%[p])");                             //~ [load 0x8 1]
	X("xorl %%eax, %%eax; cmovel 0x8(%[p]), %%eax");      //~ [load 0x8 4]
	X("bt $3, %%eax; btl $3, 0x8(%[p])");                 //~ [load 0x8 4]
	/* across a line and a page */
	X("movq 0x3c(%[p]), %%rax");                          //~ [load 0x3c 8]
	X("movups 0xff8(%[p]), %%xmm0");                      //~ [load 0xff8 16]
	X("vmovups 0x70(%[p]), %%ymm0; vzeroupper");          //~ [load 0x70 32]
	/* Strings. What is compared is equal, so all of it is read. */
	X("lea 0x100(%[p]), %%rsi; lea 0x200(%[p]), %%rdi; cmpsb"); //~ [load 0x100 1]; [load 0x200 1]
	X("lea 0x100(%[p]), %%rdi; xorl %%eax, %%eax; scasb"); //~ [load 0x100 1]
	X("lea 0x100(%[p]), %%rsi; movl $4, %%ecx; rep lodsb"); //~ [load 0x100 4]
	/* line by line, however long */
	X("lea 0x130(%[p]), %%rsi; movl $300, %%ecx; rep lodsb"); //~ [load 0x130 16]; [load 0x140 64]; [load 0x180 64]; [load 0x1c0 64]; [load 0x200 64]; [load 0x240 28]
	X("lea 0x100(%[p]), %%rsi; lea 0x200(%[p]), %%rdi; movl $4, %%ecx; repe cmpsb"); //~ [load 0x100 4]; [load 0x200 4]
	/* Not accesses. */
	X("lea 0x100(%[p]), %%rax");
	X("prefetcht0 0x100(%[p])");
	X("nopl 0x100(%[p])");
	/* An indirect call loads its target. */
	STORE(p + 0x80, (uintptr_t)nothing);                  //~ store 0x80 8 *
	X("call *0x80(%[p])");                                //~ [load 0x80 8]
	return 0;
}
