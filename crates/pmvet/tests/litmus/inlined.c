/* Functions that the compiler inlined are still named. */
/* flags: -O2 */
#include "litmus.h"

static inline __attribute__((always_inline)) void
persist(char *at)
{
	__asm__ volatile("clwb %0" : "+m"(*at));
	__asm__ volatile("sfence" ::: "memory");
}

static inline __attribute__((always_inline)) void
put(char *at, int value)
{
	STORE(at, value);
	persist(at);
}

__attribute__((noipa)) static void
insert(char *p, int value)
{
	put(p, value);
	put(p + 64, value);
}

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	insert(p, 1);
	//~ store 0x0 8 0100000000000000 @ put<insert<main; clwb 0x0 @ persist<put<insert<main; sfence @ persist<put<insert<main
	//~ store 0x40 8 0100000000000000 @ put<insert<main; clwb 0x40 @ persist<put<insert<main; sfence @ persist<put<insert<main
	return 0;
}
