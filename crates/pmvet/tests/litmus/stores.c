/* Plain stores of every width, and where they may lie. */
/* needs: sse4_1 avx movbe */
#include "litmus.h"

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	X("movb $0x11, 0x0(%[p])");                           //~ store 0x0 1 11
	X("movw $0x2233, 0x2(%[p])");                         //~ store 0x2 2 3322
	X("movl $0x44556677, 0x4(%[p])");                     //~ store 0x4 4 77665544
	X("movq $-2, 0x8(%[p])");                             //~ store 0x8 8 feffffffffffffff
	X("movb $0x18, %%al; movb %%al, 0x10(%[p])");         //~ store 0x10 1 18
	X("movb $0x19, %%ah; movb %%ah, 0x11(%[p])");         //~ store 0x11 1 19
	X("movw $0x1a, %%cx; movw %%cx, 0x12(%[p])");         //~ store 0x12 2 1a00
	X("movl $0x1b, %%ecx; movl %%ecx, 0x14(%[p])");       //~ store 0x14 4 1b000000
	X("movq $0x1c, %%rcx; movq %%rcx, 0x18(%[p])");       //~ store 0x18 8 1c00000000000000
	X("movl $8, %%ecx; movl $1, (%[p], %%rcx, 4)");       //~ store 0x20 4 01000000
	X("movl $0x01020304, %%eax; movbe %%eax, 0x24(%[p])"); //~ store 0x24 4 01020304
	X("stc; setc 0x28(%[p]); setnc 0x29(%[p])");          //~ store 0x28 1 01; store 0x29 1 00

	/* The flags are in use across the store: they must survive. */
	X("movl $1, %%eax; cmpl $1, %%eax; movl $2, 0x2c(%[p]); sete 0x30(%[p])"); //~ store 0x2c 4 02000000; store 0x30 1 01

	/* x87 */
	X("fld1; fstpt 0x100(%[p])");                         //~ store 0x100 10 0000000000000080ff3f
	X("fldpi; fstpl 0x110(%[p])");                        //~ store 0x110 8 182d4454fb210940
	X("fld1; fstps 0x118(%[p])");                         //~ store 0x118 4 0000803f
	X("fld1; fistps 0x11c(%[p])");                        //~ store 0x11c 2 0100
	X("fld1; fistpll 0x120(%[p])");                       //~ store 0x120 8 0100000000000000
	X("fnstcw 0x128(%[p])");                              //~ store 0x128 2 7f03
	X("stmxcsr 0x12c(%[p])");                             //~ store 0x12c 4 801f0000

	/* the stack */
	X("pushq $0x7f; popq 0x130(%[p])");                   //~ store 0x130 8 7f00000000000000
	X("pushq 0x130(%[p]); popq %%rax");                   //~ [load 0x130 8]
	X("pushw $0x55; popw 0x138(%[p])");                   //~ store 0x138 2 5500

	/* SSE */
	X("pcmpeqd %%xmm0, %%xmm0; movups %%xmm0, 0x141(%[p])"); //~ store 0x141 16 ff*16
	X("pxor %%xmm1, %%xmm1; movaps %%xmm1, 0x160(%[p])"); //~ store 0x160 16 00*16
	X("pcmpeqd %%xmm0, %%xmm0; movlps %%xmm0, 0x170(%[p])"); //~ store 0x170 8 ffffffffffffffff
	X("pcmpeqd %%xmm0, %%xmm0; movhps %%xmm0, 0x178(%[p])"); //~ store 0x178 8 ffffffffffffffff
	X("pcmpeqd %%xmm0, %%xmm0; movss %%xmm0, 0x180(%[p])"); //~ store 0x180 4 ffffffff
	X("movl $5, %%eax; movd %%eax, %%xmm0; movd %%xmm0, 0x184(%[p])"); //~ store 0x184 4 05000000
	X("movl $6, %%eax; movd %%eax, %%xmm0; movq %%xmm0, 0x188(%[p])"); //~ store 0x188 8 0600000000000000
	X("movl $0x0807, %%eax; movd %%eax, %%xmm0; pextrb $1, %%xmm0, 0x190(%[p])"); //~ store 0x190 1 08
	X("movl $0x0807, %%eax; movd %%eax, %%xmm0; pextrw $0, %%xmm0, 0x192(%[p])"); //~ store 0x192 2 0708

	/* AVX */
	X("vpcmpeqd %%xmm0, %%xmm0, %%xmm0; vmovups %%ymm0, 0x1a0(%[p])"); //~ store 0x1a0 32 ffffffffffffffffffffffffffffffff00000000000000000000000000000000
	X("vpcmpeqd %%xmm0, %%xmm0, %%xmm0; vmovdqu %%xmm0, 0x1c0(%[p])"); //~ store 0x1c0 16 ff*16
	X("vpcmpeqd %%xmm0, %%xmm0, %%xmm0; vinsertf128 $1, %%xmm0, %%ymm0, %%ymm0; vextractf128 $1, %%ymm0, 0x1d0(%[p]); vzeroupper"); //~ store 0x1d0 16 ff*16

	/* across a line, and across a page */
	X("movq $-1, 0x1fc(%[p])");                           //~ store 0x1fc 8 ffffffffffffffff
	X("movw $0x0102, 0x23f(%[p])");                       //~ store 0x23f 2 0201
	X("pcmpeqd %%xmm0, %%xmm0; movups %%xmm0, 0x278(%[p])"); //~ store 0x278 16 ff*16
	X("vpxor %%xmm0, %%xmm0, %%xmm0; vmovups %%ymm0, 0x2b0(%[p]); vzeroupper"); //~ store 0x2b0 32 00*32
	X("movl $0x0d0c0b0a, 0xffe(%[p])");                   //~ store 0xffe 4 0a0b0c0d
	X("movq $-3, 0x1ffc(%[p])");                          //~ store 0x1ffc 8 fdffffffffffffff
	X("pcmpeqd %%xmm0, %%xmm0; movups %%xmm0, 0x2ff1(%[p])"); //~ store 0x2ff1 16 ff*16
	/* the last byte of the mapping */
	X("movb $0x99, 0x3fff(%[p])");                        //~ store 0x3fff 1 99

	/* the compiler's own */
	*(volatile uint64_t *)(p + 0x300) = 0x1122334455667788; //~ store 0x300 8 8877665544332211
	return 0;
}
