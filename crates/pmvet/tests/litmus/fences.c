/* Flushes and fences. */
/* needs: clwb clflushopt */
#include "litmus.h"

static char volatile_line[128] __attribute__((aligned(64)));

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	unsigned a = 0, b, c = 0, d;

	X("movb $1, 0x40(%[p])");                             //~ store 0x40 1 01
	X("clflush 0x40(%[p])");                              //~ clflush 0x40
	X("clflushopt 0x80(%[p])");                           //~ clflushopt 0x80
	X("clwb 0xc0(%[p])");                                 //~ clwb 0xc0
	/* within a line */
	X("clwb 0xff(%[p])");                                 //~ clwb 0xff
	X("sfence");                                          //~ sfence
	X("mfence");                                          //~ mfence
	/* orders loads only */
	X("lfence");
	X("sfence; sfence");                                  //~ sfence; sfence

	__asm__ volatile("clflush %0" : "+m"(volatile_line[0])); //~ clflush volatile
	__asm__ volatile("clflushopt %0" : "+m"(volatile_line[64])); //~ clflushopt volatile
	__asm__ volatile("clwb %0" : "+m"(volatile_line[7]));  //~ clwb volatile
	X("sfence");                                          //~ sfence

	/* `cpuid` serialises: a fence if a flush waits for one */
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	X("clwb 0x40(%[p])");                                 //~ clwb 0x40
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)); //~ serializing-fence
	a = 0;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	/* `clflush` waits for no fence */
	X("clflush 0x40(%[p])");                              //~ clflush 0x40
	a = 0;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	return 0;
}
