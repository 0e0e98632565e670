/* Other programs on the same file, started in three ways. */
#include "litmus.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	int status;
	if (argc > 3) {
		STORE(p + 0x40 * atoi(argv[3]), atoi(argv[3]));
		return 0;
	}
	STORE(p, 1);
	char *arguments[] = {argv[0], argv[1], argv[2], "1", NULL};
	pid_t child = fork();
	if (child == 0)
		execv(argv[0], arguments);
	MUST(waitpid(child, &status, 0) == child && status == 0);

	arguments[3] = "2";
	child = vfork();
	if (child == 0) {
		execv(argv[0], arguments);
		_exit(98);
	}
	MUST(waitpid(child, &status, 0) == child && status == 0);

	arguments[3] = "3";
	MUST(posix_spawn(&child, argv[0], NULL, NULL, arguments, environ) == 0);
	MUST(waitpid(child, &status, 0) == child && status == 0);

	/* one that cannot be started changes nothing */
	child = vfork();
	if (child == 0) {
		execv("/no such program", arguments);
		_exit(7);
	}
	MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
	STORE(p, 2);
	arguments[3] = "4";
	execv(argv[0], arguments);
	return 97;
}
