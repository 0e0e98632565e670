/* Vector stores of which only some elements are written. */
/* needs: avx avx2 */
#include "litmus.h"

__attribute__((used, aligned(32))) static const unsigned char bytes[32] = {
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
	17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
};
__attribute__((used, aligned(16))) static const unsigned char bytemask[16] = {
	0x80, 0, 0, 0x80, 0x80, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff,
};
__attribute__((used, aligned(32))) static const unsigned mask32[8] = {
	0, 0x80000000, 0x80000000, 0, 0, 0, 0, 0xffffffff,
};
__attribute__((used, aligned(32))) static const unsigned none[8] = {0};

#define SET "movdqa bytes(%%rip), %%xmm0; movdqa bytemask(%%rip), %%xmm1; "
#define SET256 "vmovdqa bytes(%%rip), %%ymm0; vmovdqa mask32(%%rip), %%ymm1; "

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	/* past the cache, as other non-temporal stores */
	X(SET "lea 0x40(%[p]), %%rdi; maskmovdqu %%xmm1, %%xmm0"); //~ nt-store 0x40 1 01; nt-store 0x43 2 0405; nt-store 0x4f 1 10
	X("movdqa none(%%rip), %%xmm1; lea 0x40(%[p]), %%rdi; maskmovdqu %%xmm1, %%xmm0");
	X("sfence");                                          //~ sfence

	X(SET256 "vmaskmovps %%ymm0, %%ymm1, 0x80(%[p])");    //~ store 0x84 8 05060708090a0b0c; store 0x9c 4 1d1e1f20
	X(SET256 "vpmaskmovd %%ymm0, %%ymm1, 0xa0(%[p])");    //~ store 0xa4 8 05060708090a0b0c; store 0xbc 4 1d1e1f20
	X(SET256 "vmaskmovpd %%ymm0, %%ymm1, 0xc0(%[p])");    //~ store 0xc0 8 0102030405060708; store 0xd8 8 191a1b1c1d1e1f20
	X("vmovdqa none(%%rip), %%ymm1; vmaskmovps %%ymm0, %%ymm1, 0x100(%[p])");
	/* across a line */
	X(SET256 "vmaskmovps %%ymm0, %%ymm1, 0x138(%[p])");   //~ store 0x13c 8 05060708090a0b0c; store 0x154 4 1d1e1f20
	/* loads under a mask read the elements it names */
	X(SET256 "vmaskmovps 0x80(%[p]), %%ymm1, %%ymm2");    //~ [load 0x84 8]; [load 0x9c 4]
	X("vzeroupper");
	return 0;
}
