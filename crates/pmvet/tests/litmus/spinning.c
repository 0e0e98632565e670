/* Rows of accesses that find the same and change nothing, as threads make that spin. Nobody needs to know all of them. */
#include "litmus.h"

#define TIMES 1000

/* Attempts at a lock that is taken. */
static __attribute__((noinline)) void
attempts(char *p)
{
	for (int i = 0; i < TIMES; i++)
		X("xorl %%eax, %%eax; movl $1, %%ecx; lock cmpxchgl %%ecx, 0x0(%[p])");
}

/* The same by exchanges, which store what is there. */
static __attribute__((noinline)) void
exchanges(char *p)
{
	for (int i = 0; i < TIMES; i++)
		X("movl $1, %%eax; xchgl %%eax, 0x0(%[p]); movl %%eax, %%ecx");
}

/* A thread that waits for a value. */
static __attribute__((noinline)) void
looks(char *p)
{
	for (int i = 0; i < TIMES; i++)
		X("cmpl $2, 0x0(%[p])");
}

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	for (int i = 0; i < 2; i++) {
		X("movl $1, 0x0(%[p])");
		attempts(p);
		exchanges(p);
		looks(p);
	}
	/* Successful ones count, however many. */
	for (int i = 0; i < TIMES; i++)
		X("lock incl 0x40(%[p])");
	return 0;
}
