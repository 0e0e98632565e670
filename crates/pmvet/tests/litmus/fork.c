/* A process that forks after it has mapped PM. */
#include "litmus.h"
#include <sys/wait.h>

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	STORE(p, 1); //~ store 0x0 8 0100000000000000
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		STORE(p, 2); //~2 store 0x0 8 0200000000000000
		char *q = pool(argv, "pool2");
		STORE(q, 3); //~2 store pool2+0x0 8 0300000000000000
		X("clwb 0x0(%[p]); sfence"); //~2 clwb 0x0; sfence
		_exit(0);
	}
	int status;
	MUST(waitpid(child, &status, 0) == child && status == 0);
	STORE(p, 4); //~ store 0x0 8 0400000000000000
	/* The child's unmapping is its own affair. */
	child = fork();
	if (child == 0) {
		munmap(p, POOL); //~3 unmap pool 0x0 0x4000
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child && status == 0);
	STORE(p, 5); //~ store 0x0 8 0500000000000000
	return 0;
}
