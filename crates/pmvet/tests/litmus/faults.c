/* Stores that fault: reported once, when they happen, or never. */
#include "litmus.h"
#include <setjmp.h>

static char *p;
static int fd;
static sigjmp_buf out;
static enum { ALLOW, GROW, LEAVE } what_to_do;
static volatile int faults;

static void
handler(int number, siginfo_t *info, void *context)
{
	char *page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1));
	faults++;
	if (what_to_do == ALLOW)
		MUST(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
	else if (what_to_do == GROW)
		MUST(ftruncate(fd, POOL) == 0);
	else
		siglongjmp(out, 1);
}

int
main(int argc, char **argv)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
	fd = open_pm(argv, "pool");
	p = map_fd(fd, 0, POOL);
	MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);

	/* The handler allows it, and the instruction runs again. */
	MUST(mprotect(p, PAGE, PROT_READ) == 0);
	X("movq $1, 0x40(%[p])"); //~ store 0x40 8 0100000000000000
	MUST(faults == 1);
	MUST(mprotect(p, PAGE, PROT_READ) == 0);
	X("lock incq 0x40(%[p])"); //~ rmw 0x40 8 0100000000000000 0200000000000000
	MUST(faults == 2);
	MUST(mprotect(p + PAGE, PAGE, PROT_READ) == 0);
	/* half of it may be written, half not */
	X("movq $-1, 0xffc(%[p])"); //~ store 0xffc 8 ffffffffffffffff
	MUST(faults == 3);
	MUST(mprotect(p + PAGE, PAGE, PROT_READ) == 0);
	/* A repeated store that stops in its middle goes on from there. */
	X("lea 0xff0(%[p]), %%rdi; movl $32, %%ecx; movb $0x31, %%al; cld; rep stosb");
	//~ store 0xff0 16 31*16; store 0x1000 16 31*16
	MUST(faults == 4);

	/* It is never done. */
	what_to_do = LEAVE;
	MUST(mprotect(p, PAGE, PROT_READ) == 0);
	if (sigsetjmp(out, 1) == 0)
		X("movq $9, 0x40(%[p])");
	MUST(faults == 5);
	if (sigsetjmp(out, 1) == 0)
		X("movl $1, %%eax; lock xaddq %%rax, 0x40(%[p])");
	MUST(faults == 6);
	MUST(mprotect(p, PAGE, PROT_READ | PROT_WRITE) == 0);
	X("movq $3, 0x48(%[p])"); //~ store 0x48 8 0300000000000000

	/* Beyond the end of the file. */
	MUST(ftruncate(fd, PAGE) == 0); //~ file-resize 0x1000
	if (sigsetjmp(out, 1) == 0)
		X("movq $4, 0x2000(%[p])");
	MUST(faults == 7);
	what_to_do = GROW;
	X("movq $5, 0x2000(%[p])"); //~ file-resize 0x4000; store 0x2000 8 0500000000000000
	MUST(faults == 8);

	/* The kernel's own faults are errors. */
	MUST(mprotect(p, PAGE, PROT_READ) == 0);
	int fds[2];
	MUST(pipe(fds) == 0 && write(fds[1], "abc", 3) == 3);
	MUST(read(fds[0], p + 0x80, 3) == -1 && errno == EFAULT);
	return 0;
}
