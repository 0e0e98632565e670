/* AVX-512: whole, masked, compressed and scattered stores, and gathers. */
/* needs: avx512f avx512vl avx512bw avx512dq */
#include "litmus.h"

__attribute__((used, aligned(64))) static const unsigned numbers[16] = {
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
};
__attribute__((used, aligned(64))) static const unsigned index32[16] = {
	0, 3, 1, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
};
__attribute__((used, aligned(64))) static const int64_t index64[8] = {0, 16, 2, -1, 0, 0, 0, 1};

#define SET "vmovdqa64 numbers(%%rip), %%zmm0; "
#define K(mask) "movl $" #mask ", %%eax; kmovd %%eax, %%k1; "

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	X("vpternlogd $0xff, %%zmm0, %%zmm0, %%zmm0; vmovdqu64 %%zmm0, 0x40(%[p])"); //~ store 0x40 64 ff*64
	X("vpxorq %%zmm0, %%zmm0, %%zmm0; vmovups %%zmm0, 0xa0(%[p])"); //~ store 0xa0 64 00*64
	X("vpternlogd $0xff, %%zmm0, %%zmm0, %%zmm0; vmovdqu64 %%zmm0, 0xfc8(%[p])"); //~ store 0xfc8 64 ff*64

	/* merging masks */
	X(SET K(0x8006) "vmovdqu32 %%zmm0, 0x100(%[p]) %{%%k1%}"); //~ store 0x104 8 0200000003000000; store 0x13c 4 10000000
	X(SET K(0x81) "vmovdqu64 %%zmm0, 0x140(%[p]) %{%%k1%}"); //~ store 0x140 8 0100000002000000; store 0x178 8 0f00000010000000
	X(SET K(0x11) "vmovdqu8 %%xmm0, 0x180(%[p]) %{%%k1%}"); //~ store 0x180 1 01; store 0x184 1 02
	X(SET K(0x4) "vmovdqu16 %%ymm0, 0x190(%[p]) %{%%k1%}"); //~ store 0x194 2 0200
	X(SET K(0x0) "vmovdqu32 %%zmm0, 0x1c0(%[p]) %{%%k1%}");
	X(SET K(0x1) "vmovss %%xmm0, 0x1c0(%[p]) %{%%k1%}");   //~ store 0x1c0 4 01000000
	X(SET K(0x5) "vextracti32x4 $1, %%zmm0, 0x1d0(%[p]) %{%%k1%}"); //~ store 0x1d0 4 05000000; store 0x1d8 4 07000000
	X(SET K(0x3) "vpmovdb %%zmm0, 0x1e0(%[p]) %{%%k1%}");  //~ store 0x1e0 2 0102
	X(SET "vpmovdw %%zmm0, 0x200(%[p])");                  //~ store 0x200 32 0100020003000400050006000700080009000a000b000c000d000e000f001000

	/* the chosen elements, side by side */
	X(SET K(0xa) "vpcompressd %%zmm0, 0x240(%[p]) %{%%k1%}"); //~ store 0x240 8 0200000004000000
	X(SET K(0x0) "vpcompressd %%zmm0, 0x250(%[p]) %{%%k1%}");
	X(SET K(0x6) "vpcompressq %%zmm0, 0x260(%[p]) %{%%k1%}"); //~ store 0x260 16 03000000040000000500000006000000

	/* one element per index */
	X(SET K(0x800f) "vmovdqa64 index32(%%rip), %%zmm1; vpscatterdd %%zmm0, 0x400(%[p], %%zmm1, 4) %{%%k1%}"); //~ store 0x400 4 01000000; store 0x40c 4 02000000; store 0x404 4 03000000; store 0x4a0 4 04000000; store 0x424 4 10000000
	X(SET K(0x8f) "vmovdqa64 index64(%%rip), %%zmm1; vpscatterqq %%zmm0, 0x600(%[p], %%zmm1, 8) %{%%k1%}"); //~ store 0x600 8 0100000002000000; store 0x680 8 0300000004000000; store 0x610 8 0500000006000000; store 0x5f8 8 0700000008000000; store 0x608 8 0f00000010000000
	X(SET K(0x0) "vmovdqa64 index32(%%rip), %%zmm1; vpscatterdd %%zmm0, 0x400(%[p], %%zmm1, 4) %{%%k1%}");

	/* and back */
	X(K(0x800f) "vmovdqa64 index32(%%rip), %%zmm1; vpgatherdd 0x400(%[p], %%zmm1, 4), %%zmm0 %{%%k1%}"); //~ [load 0x400 4; load 0x40c 4; load 0x404 4; load 0x4a0 4; load 0x424 4]
	X(K(0x6) "vmovdqu32 0x100(%[p]), %%zmm0 %{%%k1%}");    //~ [load 0x104 8]
	X("vmovdqu64 0x100(%[p]), %%zmm0");                    //~ [load 0x100 64]
	X("vpaddd 0x100(%[p]) %{1to16%}, %%zmm0, %%zmm0");     //~ [load 0x100 4]

	/* past the cache */
	X(SET "vmovntdq %%zmm0, 0x800(%[p])");                 //~ nt-store 0x800 64 0100000002000000030000000400000005000000060000000700000008000000090000000a0000000b0000000c0000000d0000000e0000000f00000010000000
	X("vzeroupper");
	return 0;
}
