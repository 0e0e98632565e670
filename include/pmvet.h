/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * pmvet.h: optional markers for programs that are run under pmvet.
 *
 * Nothing needs them: pmvet works on unmodified programs. They tell it what the program knows and the machine does not:
 *
 *	PMVET_BEGIN("insert");            an operation begins
 *	PMVET_END("insert");              and ends
 *	PMVET_CONSISTENT();               a crash here must need no repair
 *	PMVET_NAME(node, sizeof(*node), "root node");
 *	                                  what reports shall call these bytes
 *	PMVET_IGNORE(stats, sizeof(*stats));
 *	                                  these bytes need not survive a crash
 *	PMVET_LOG("insert.BEGIN");        free text; as with pmreorder, a text that ends in ".BEGIN" or ".END"
 *	                                  marks the beginning or the end of what it names
 *	PMVET_OP_BEGIN("put a 1");        for --durable: the operation of this line of the input begins (0: the next line in order)
 *	PMVET_OP_END("put a 1");          and is acknowledged: from here on a crash may not lose it
 *
 * Programs with markers for pmreorder need no change: VALGRIND_EMIT_LOG and VALGRIND_PMC_EMIT_LOG of Valgrind's own headers
 * reach pmvet too, and are defined here if those headers are not there. (If they are, include them first.)
 *
 * A marker outside pmvet is a few instructions that do nothing. With PMVET_DISABLE defined, and on machines other
 * than x86-64, it is nothing at all. One file, no library, C89 with GNU extensions and C++.
 */
#ifndef PMVET_H
#define PMVET_H

#define PMVET_BEGIN(name) PMVET_REQUEST_(0, 0, 0, name)
#define PMVET_END(name) PMVET_REQUEST_(1, 0, 0, name)
#define PMVET_CONSISTENT() PMVET_REQUEST_(2, 0, 0, 0)
#define PMVET_NAME(addr, len, name) PMVET_REQUEST_(3, addr, len, name)
#define PMVET_IGNORE(addr, len) PMVET_REQUEST_(4, addr, len, 0)
#define PMVET_LOG(text) PMVET_REQUEST_(5, 0, 0, text)
#define PMVET_OP_BEGIN(text) PMVET_REQUEST_(6, 0, 0, text)
#define PMVET_OP_END(text) PMVET_REQUEST_(7, 0, 0, text)

#ifndef VALGRIND_PMC_EMIT_LOG
#define VALGRIND_PMC_EMIT_LOG(text) PMVET_LOG(text)
#endif
#ifndef VALGRIND_EMIT_LOG
#define VALGRIND_EMIT_LOG(text) PMVET_LOG(text)
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(PMVET_DISABLE)

/*
 * rax points to six words: the request ('P', 'V' and its number), an address, a length, a text, and two that are not
 * used. The rotations add up to two full turns of rdi, and rbx is exchanged with itself: only the flags change.
 */
#define PMVET_REQUEST_(number, addr, len, text)                                                                        \
	do {                                                                                                           \
		unsigned long pmvet_words_[6];                                                                         \
		unsigned long pmvet_answer_ = 0;                                                                       \
		pmvet_words_[0] = 0x50560000ul + (number);                                                             \
		pmvet_words_[1] = (unsigned long)(addr);                                                               \
		pmvet_words_[2] = (unsigned long)(len);                                                                \
		pmvet_words_[3] = (unsigned long)(text);                                                               \
		pmvet_words_[4] = 0;                                                                                   \
		pmvet_words_[5] = 0;                                                                                   \
		__asm__ volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\t"         \
				 "xchgq %%rbx, %%rbx"                                                                  \
				 : "+d"(pmvet_answer_)                                                                 \
				 : "a"(pmvet_words_)                                                                   \
				 : "cc", "memory");                                                                    \
		(void)pmvet_answer_;                                                                                   \
	} while (0)

#else

/* The arguments are looked at by the compiler, and by nobody else. */
#define PMVET_REQUEST_(number, addr, len, text)                                                                        \
	do {                                                                                                           \
		if (0) {                                                                                               \
			(void)(addr);                                                                                  \
			(void)(len);                                                                                   \
			(void)(text);                                                                                  \
		}                                                                                                      \
	} while (0)

#endif

#endif
