/* Read-modify-writes, with and without a lock. */
/* needs: cx16 */
#include "litmus.h"

static uint64_t volatile_word;

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");

	/* without a lock: a load and a store */
	X("movl $5, %%eax; addl %%eax, 0x0(%[p])");           //~ [load 0x0 4]; store 0x0 4 05000000
	X("incb 0x0(%[p])");                                  //~ [load 0x0 1]; store 0x0 1 06
	X("orw $0x0100, 0x0(%[p])");                          //~ [load 0x0 2]; store 0x0 2 0601
	X("notq 0x8(%[p])");                                  //~ [load 0x8 8]; store 0x8 8 ffffffffffffffff
	X("shll $4, 0x0(%[p])");                              //~ [load 0x0 4]; store 0x0 4 60100000
	X("movl $1, %%eax; xaddl %%eax, 0x0(%[p])");          //~ [load 0x0 4]; store 0x0 4 61100000
	X("btsl $1, 0x0(%[p])");                              //~ [load 0x0 4]; store 0x0 4 63100000
	X("movl $33, %%eax; btsl %%eax, 0x0(%[p])");          //~ [load 0x4 4]; store 0x4 4 02000000
	X("cmpl $7, 0x0(%[p])");                              //~ [load 0x0 4]

	/* locked */
	X("movl $7, %%eax; lock xaddl %%eax, 0x40(%[p])");    //~ rmw 0x40 4 00000000 07000000
	X("movl $1, %%eax; lock xaddq %%rax, 0x40(%[p])");    //~ rmw 0x40 8 0700000000000000 0800000000000000
	X("lock incl 0x40(%[p])");                            //~ rmw 0x40 4 08000000 09000000
	X("lock decw 0x40(%[p])");                            //~ rmw 0x40 2 0900 0800
	X("lock addb $0x80, 0x40(%[p])");                     //~ rmw 0x40 1 08 88
	X("lock negl 0x44(%[p])");                            //~ rmw 0x44 4 00000000 00000000
	X("lock andl $0xf0, 0x40(%[p])");                     //~ rmw 0x40 4 88000000 80000000
	X("movl $3, %%eax; xchgl %%eax, 0x40(%[p])");         //~ rmw 0x40 4 80000000 03000000
	X("movb $4, %%al; xchgb %%al, 0x40(%[p])");           //~ rmw 0x40 1 03 04
	X("lock btsl $3, 0x40(%[p])");                        //~ rmw 0x40 4 04000000 0c000000
	X("lock btrl $2, 0x40(%[p])");                        //~ rmw 0x40 4 0c000000 08000000
	/* bit 100 of a string of bits: the fourth word; and one below the operand */
	X("movl $100, %%eax; lock btsl %%eax, 0x40(%[p])");   //~ rmw 0x4c 4 00000000 10000000
	X("movq $-1, %%rax; lock btsq %%rax, 0x40(%[p])");    //~ rmw 0x38 8 0000000000000000 0000000000000080

	/* compare and exchange: found, not found */
	X("xorl %%eax, %%eax; movl $9, %%ecx; lock cmpxchgl %%ecx, 0x80(%[p])"); //~ rmw 0x80 4 00000000 09000000
	X("xorl %%eax, %%eax; movl $8, %%ecx; lock cmpxchgl %%ecx, 0x80(%[p])"); //~ rmw 0x80 4 09000000 09000000 failed
	X("movl $9, %%eax; movl $9, %%ecx; lock cmpxchgl %%ecx, 0x80(%[p])"); //~ rmw 0x80 4 09000000 09000000
	X("movl $9, %%eax; movl $1, %%ecx; lock cmpxchgq %%rcx, 0x80(%[p])"); //~ rmw 0x80 8 0900000000000000 0100000000000000
	X("movl $1, %%eax; xorl %%edx, %%edx; movl $2, %%ebx; movl $3, %%ecx; lock cmpxchg8b 0x80(%[p])"); //~ rmw 0x80 8 0100000000000000 0200000003000000
	X("xorl %%eax, %%eax; xorl %%edx, %%edx; movl $4, %%ebx; movl $5, %%ecx; lock cmpxchg16b 0xc0(%[p])"); //~ rmw 0xc0 16 00*16 04000000000000000500000000000000
	X("xorl %%eax, %%eax; xorl %%edx, %%edx; lock cmpxchg16b 0xc0(%[p])"); //~ rmw 0xc0 16 04000000000000000500000000000000 04000000000000000500000000000000 failed
	/* the zero flag must reach the target */
	X("xorl %%eax, %%eax; movl $6, %%ecx; lock cmpxchgl %%ecx, 0x80(%[p]); sete 0x100(%[p])"); //~ rmw 0x80 4 02000000 02000000 failed; store 0x100 1 00

	/* across a line */
	X("movl $1, %%eax; lock xaddl %%eax, 0x13e(%[p])");   //~ rmw 0x13e 4 00000000 01000000

	/* Not locked compare and exchange: a store, even if it writes back what was there. */
	X("xorl %%eax, %%eax; movl $9, %%ecx; cmpxchgl %%ecx, 0x180(%[p])"); //~ [load 0x180 4]; store 0x180 4 09000000
	X("xorl %%eax, %%eax; movl $8, %%ecx; cmpxchgl %%ecx, 0x180(%[p])"); //~ [load 0x180 4]; store 0x180 4 09000000

	/* Locked, on volatile memory: a fence, but only if something waits for one. */
	__asm__ volatile("lock incq %0" : "+m"(volatile_word) :: "cc");
	X("clwb 0x40(%[p])");                                 //~ clwb 0x40
	__asm__ volatile("lock orq $1, %0" : "+m"(volatile_word) :: "cc"); //~ locked-fence
	__asm__ volatile("lock orq $1, %0" : "+m"(volatile_word) :: "cc");
	X("clflushopt 0x40(%[p])");                           //~ clflushopt 0x40
	X("xorl %%eax, %%eax; xchgl %%eax, -64(%%rsp)");      //~ locked-fence
	X("clflushopt 0x40(%[p])");                           //~ clflushopt 0x40
	__asm__ volatile("xchgq %%rax, %0" : "+m"(volatile_word) :: "rax"); //~ locked-fence
	X("xorl %%eax, %%eax; movnti %%eax, 0x40(%[p])");     //~ nt-store 0x40 4 00000000
	X("lock addl $0, -64(%%rsp)");                        //~ locked-fence
	/* On PM the read-modify-write itself says so. */
	X("clwb 0x40(%[p])");                                 //~ clwb 0x40
	X("lock incl 0x40(%[p])");                            //~ rmw 0x40 4 00000000 01000000
	X("lock addl $0, -64(%%rsp)");
	return 0;
}
