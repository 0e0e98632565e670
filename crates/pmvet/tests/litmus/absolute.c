/* PM at an address that fits in 32 bits, stored to without any register. */
#include "litmus.h"

int
main(int argc, char **argv)
{
	int fd = open_pm(argv, "pool");
	char *p = mmap((void *)0x20000000, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
	MUST(p == (char *)0x20000000);
	__asm__ volatile("movl $0x11, 0x20000040" ::: "memory"); //~ store 0x40 4 11000000
	__asm__ volatile("movabsq %%rax, 0x20000048" :: "a"(0x22L) : "memory"); //~ store 0x48 8 2200000000000000
	__asm__ volatile("lock incl 0x20000040" ::: "memory", "cc"); //~ rmw 0x40 4 11000000 12000000
	__asm__ volatile("clwb 0x20000040" ::: "memory"); //~ clwb 0x40
	return 0;
}
