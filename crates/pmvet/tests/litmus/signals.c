/* Signal handlers: on the normal stack, on another, left by a return and by a jump. */
#include "litmus.h"
#include <setjmp.h>
#include <sys/syscall.h>

#define FUNCTION __attribute__((noipa)) static void

static char *p;
static sigjmp_buf back;
static int jump;

FUNCTION
store(int value)
{
	STORE(p, value);
	__asm__ volatile("");
}

static void
handler(int number)
{
	STORE(p + 8, number);
	store(number);
	if (jump)
		siglongjmp(back, 1);
}

FUNCTION
interrupted(int value)
{
	syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1);
	STORE(p, value);
}

int
main(int argc, char **argv)
{
	static char other[65536];
	stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
	p = pool(argv, "pool");

	MUST(signal(SIGUSR1, handler) != SIG_ERR);
	interrupted(1);
	//~ store 0x8 8 0a00000000000000 @ handler<*; store 0x0 8 0a00000000000000 @ store<handler<*; store 0x0 8 0100000000000000 @ interrupted<main
	store(2);
	//~ store 0x0 8 0200000000000000 @ store<main

	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	MUST(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	interrupted(3);
	//~ store 0x8 8 0a00000000000000 @ handler<*; store 0x0 8 0a00000000000000 @ store<handler<*; store 0x0 8 0300000000000000 @ interrupted<main
	store(4);
	//~ store 0x0 8 0400000000000000 @ store<main

	jump = 1;
	if (sigsetjmp(back, 1) == 0)
		interrupted(5);
	//~ store 0x8 8 0a00000000000000 @ handler<*; store 0x0 8 0a00000000000000 @ store<handler<*
	store(6);
	//~ store 0x0 8 0600000000000000 @ store<main

	MUST(signal(SIGUSR1, handler) != SIG_ERR);
	if (sigsetjmp(back, 1) == 0)
		interrupted(7);
	//~ store 0x8 8 0a00000000000000 @ handler<*; store 0x0 8 0a00000000000000 @ store<handler<*
	STORE(p, 8); //~ store 0x0 8 0800000000000000 @ main
	store(9);
	//~ store 0x0 8 0900000000000000 @ store<main
	return 0;
}
