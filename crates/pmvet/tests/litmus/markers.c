/* The markers of pmvet.h, and pmreorder's. */
#include "litmus.h"
#include "pmvet.h"

/* What Valgrind's own header makes of pmemcheck's log request, number 30 of the tool "PC". */
static void
valgrind_log(const char *text)
{
	uint64_t words[6] = {0x5043001e, (uint64_t)text}, answer = 0;
	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx" : "+d"(answer) : "a"(words) : "cc", "memory");
	MUST(answer == 0);
}

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	int len = 8;

	PMVET_BEGIN("insert"); //~ marker begin 0 insert
	X("movb $1, 0x0(%[p])"); //~ store 0x0 1 01
	PMVET_NAME(p + 0x40, 16, "root"); //~ marker name 0x40 16 root
	PMVET_IGNORE(p + 0x80, len); //~ marker ignore 0x80 8
	PMVET_CONSISTENT(); //~ marker consistent 0
	PMVET_END("insert"); //~ marker end 0 insert
	PMVET_LOG("remove.BEGIN"); //~ marker begin 0 remove
	VALGRIND_EMIT_LOG("remove.END"); //~ marker end 0 remove
	VALGRIND_PMC_EMIT_LOG("note"); //~ marker log 0 note
	valgrind_log("valgrind.BEGIN");
	//~ marker begin 0 valgrind
	/* A store just before it, and a program that does not need rax any more: it is read all the same. */
	uint64_t last[6] = {0x50560005, 0, 0, (uint64_t)"last"}, *at = last;
	__asm__ volatile("movb $2, 0x1(%[p]); rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx; xorl %%eax, %%eax" : "+a"(at) : [p] "r"(p), "d"(0) : "cc", "memory");
	//~ store 0x1 1 02
	//~ marker log 0 last
	/* An unknown request, and the same exchange without the rotations: nothing. */
	uint64_t words[6] = {0x50560000 + 77};
	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx" :: "a"(words), "d"(0) : "cc", "memory");
	words[0] = 0x50560000;
	__asm__ volatile("nop; xchgq %%rbx, %%rbx" :: "a"(words), "d"(0) : "cc", "memory");
	return 0;
}
