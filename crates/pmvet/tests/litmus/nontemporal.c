/* Stores past the cache. */
/* needs: avx avx2 */
#include "litmus.h"

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	X("movl $1, %%eax; movnti %%eax, 0x0(%[p])");         //~ nt-store 0x0 4 01000000
	X("movl $2, %%eax; movnti %%rax, 0x8(%[p])");         //~ nt-store 0x8 8 0200000000000000
	X("pcmpeqd %%xmm0, %%xmm0; movntps %%xmm0, 0x10(%[p])"); //~ nt-store 0x10 16 ff*16
	X("pcmpeqd %%xmm0, %%xmm0; movntpd %%xmm0, 0x20(%[p])"); //~ nt-store 0x20 16 ff*16
	X("pcmpeqd %%xmm0, %%xmm0; movntdq %%xmm0, 0x30(%[p])"); //~ nt-store 0x30 16 ff*16
	X("pcmpeqd %%mm0, %%mm0; movntq %%mm0, 0x40(%[p]); emms"); //~ nt-store 0x40 8 ffffffffffffffff
	X("vpcmpeqd %%ymm0, %%ymm0, %%ymm0; vmovntdq %%ymm0, 0x60(%[p])"); //~ nt-store 0x60 32 ff*32
	X("vpxor %%ymm0, %%ymm0, %%ymm0; vmovntps %%ymm0, 0x80(%[p]); vzeroupper"); //~ nt-store 0x80 32 00*32
	X("sfence");                                          //~ sfence
	/* unaligned and across a line, which movnti allows */
	X("movl $3, %%eax; movnti %%rax, 0xbc(%[p])");        //~ nt-store 0xbc 8 0300000000000000
	X("sfence");                                          //~ sfence
	return 0;
}
