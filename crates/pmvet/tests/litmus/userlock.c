/* Locks that only the configuration knows. */
#include "litmus.h"

#define FUNCTION __attribute__((noipa))

static volatile int word, readers;

FUNCTION void
my_lock(volatile int *lock)
{
	while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
		;
}

/* 1 is success */
FUNCTION int
my_trylock(int tries, volatile int *lock)
{
	while (tries-- > 0)
		if (!__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
			return 1;
	return 0;
}

/* like the C library's: 0 is success */
FUNCTION int
my_readlock(volatile int *lock)
{
	if (word)
		return -1;
	++*lock;
	return 0;
}

FUNCTION void
my_unlock(int unused, const char *why, volatile int *lock)
{
	__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

FUNCTION void
not_a_lock(volatile int *lock)
{
	++*lock;
}

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	my_lock(&word); //~ acquire L1 exclusive
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	MUST(my_trylock(3, &word) == 0);
	MUST(my_readlock(&readers) == -1);
	my_unlock(0, "", &word); //~ release L1
	MUST(my_trylock(3, &word) == 1); //~ acquire L1 exclusive
	my_unlock(0, "", &word); //~ release L1
	MUST(my_readlock(&readers) == 0); //~ acquire L2 shared
	my_unlock(0, "", &readers); //~ release L2
	not_a_lock(&word);
	return 0;
}
