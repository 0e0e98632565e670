/*
 * What the programs in durable/ share, C and C++: `PROGRAM POOL` does the operations that are the lines of its standard
 * input, and answers each with a line; `PROGRAM POOL dump` prints what the pool holds.
 */
#ifndef ZOO_LINES_H
#define ZOO_LINES_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINES_ITEMS 512
#define LINES_LENGTH 128

/* Whether the content is asked for; exits with status 2 on misuse. */
static inline int lines_want_dump(int argc, char **argv)
{
	if (argc == 2)
		return 0;
	if (argc == 3 && !strcmp(argv[2], "dump"))
		return 1;
	fprintf(stderr, "usage: %s POOL [dump]\n", argv[0]);
	exit(2);
}

/* The next operation, without its newline; NULL at the end of the input. */
static inline char *lines_next(void)
{
	static char line[LINES_LENGTH];

	if (!fgets(line, sizeof line, stdin))
		return NULL;
	line[strcspn(line, "\n")] = '\0';
	return line;
}

/* Answers an operation, with a bare system call: the lock that a stream has would order flushes as a fence does. */
static inline void lines_answer(const char *text)
{
	char line[LINES_LENGTH];
	int length = snprintf(line, sizeof line, "%s\n", text);

	if (write(1, line, (size_t)length) != length)
		exit(2);
}

/* Up to eight letters as a word, to be stored at once. */
static inline uint64_t lines_word(const char *text)
{
	uint64_t word = 0;

	memcpy(&word, text, strnlen(text, sizeof word));
	return word;
}

static struct {
	char text[LINES_ITEMS][LINES_LENGTH];
	int count;
} lines_items;

static int lines_compare(const void *a, const void *b)
{
	return strcmp((const char *)a, (const char *)b);
}

/* Adds an item to the content. */
__attribute__((format(printf, 1, 2)))
static inline void lines_item(const char *format, ...)
{
	va_list ap;

	if (lines_items.count == LINES_ITEMS)
		return;
	va_start(ap, format);
	vsnprintf(lines_items.text[lines_items.count++], LINES_LENGTH, format, ap);
	va_end(ap);
}

/* Prints the items, sorted: where they lie in the pool is nobody's business. */
static inline void lines_print(void)
{
	qsort(lines_items.text, (size_t)lines_items.count, LINES_LENGTH, lines_compare);
	for (int i = 0; i < lines_items.count; i++)
		puts(lines_items.text[i]);
}

#endif
