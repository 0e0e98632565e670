/* Reader-writer locks and spin locks. */
#include "litmus.h"

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	struct timespec past = {1, 0};
	pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
	MUST(pthread_rwlock_rdlock(&lock) == 0); //~ acquire L1 shared
	MUST(pthread_rwlock_tryrdlock(&lock) == 0); //~ acquire L1 shared
	MUST(pthread_rwlock_trywrlock(&lock) == EBUSY);
	MUST(pthread_rwlock_timedwrlock(&lock, &past) == ETIMEDOUT);
	MUST(pthread_rwlock_unlock(&lock) == 0); //~ release L1
	MUST(pthread_rwlock_unlock(&lock) == 0); //~ release L1
	MUST(pthread_rwlock_wrlock(&lock) == 0); //~ acquire L1 exclusive
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	MUST(pthread_rwlock_tryrdlock(&lock) == EBUSY);
	MUST(pthread_rwlock_timedrdlock(&lock, &past) != 0);
	MUST(pthread_rwlock_unlock(&lock) == 0); //~ release L1
	MUST(pthread_rwlock_trywrlock(&lock) == 0); //~ acquire L1 exclusive
	MUST(pthread_rwlock_unlock(&lock) == 0); //~ release L1
	MUST(pthread_rwlock_timedrdlock(&lock, &past) == 0); //~ acquire L1 shared
	MUST(pthread_rwlock_unlock(&lock) == 0); //~ release L1

	pthread_spinlock_t spin;
	/* In this C library the same function as unlocking. */
	MUST(pthread_spin_init(&spin, 0) == 0); //~ release L2
	MUST(pthread_spin_lock(&spin) == 0); //~ acquire L2 exclusive
	STORE(p, 2); //~ store 0x0 8 0200000000000000
	MUST(pthread_spin_trylock(&spin) == EBUSY);
	MUST(pthread_spin_unlock(&spin) == 0); //~ release L2
	MUST(pthread_spin_trylock(&spin) == 0); //~ acquire L2 exclusive
	MUST(pthread_spin_unlock(&spin) == 0); //~ release L2
	return 0;
}
