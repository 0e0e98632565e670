/* A thread without the C library's help. */
#include "litmus.h"
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>

static char *p;
static volatile int id = 1;

static int
child(void *unused)
{
	STORE(p + 0x40, 2); //~2 store 0x40 8 0200000000000000
	return 0;
}

int
main(int argc, char **argv)
{
	static char stack[65536] __attribute__((aligned(16)));
	p = pool(argv, "pool");
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
	MUST(clone(child, stack + sizeof stack, flags, NULL, NULL, NULL, &id) > 0); //~ thread-create 2
	while (id != 0)
		syscall(SYS_futex, &id, FUTEX_WAIT, 1, NULL, NULL, 0);
	STORE(p, 3); //~ store 0x0 8 0300000000000000
	return 0;
}
