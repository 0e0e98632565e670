/* What the parts of `fileops` share: an operation on files, and how it says what came of it. */
#ifndef FILEOPS_H
#define FILEOPS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum result { DONE, REFUSED, MISSING };

struct operation {
    const char *name;
    /* System calls of which one is to blame if the operation is refused, separated by commas. */
    const char *calls;
    enum result (*run)(void);
    /* 1: some file systems do not have it. 2: and a sandbox may do without it, whatever the file system. */
    int optional;
};

extern const struct operation content_operations[];
extern const struct operation name_operations[];
extern const struct operation attribute_operations[];
extern const struct operation indirect_operations[];

/* What went wrong last, in words. */
extern char reason[256];
/* The path of this program. */
extern char self[4096];

/* The path of a file in the folder of the current operation. Good for the next 15 calls. */
char *at(const char *name);

enum result refused(const char *what);
enum result missing(const char *what);

/* A call that fails was refused. */
#define CALL(call)                      \
    do {                                \
        if ((long)(call) < 0)           \
            return refused(#call);      \
    } while (0)

/* A step that is no part of the operation, and an effect that has to be seen. */
#define SEE(condition)                  \
    do {                                \
        if (!(condition))               \
            return missing(#condition); \
    } while (0)

#define PASS_ON(step)                   \
    do {                                \
        enum result passed = (step);    \
        if (passed != DONE)             \
            return passed;              \
    } while (0)

/* What the files of an operation's folder contain at first. */
#define F_TEXT "first\nsecond\n"
#define G_TEXT "other\n"
#define INNER_TEXT "inner\n"
#define DEEP_TEXT "deep\n"
#define POOL_SIZE 8192

/* The time of every file in a run that is recorded: pmvet makes them all alike, so that runs are. */
#define FIXED_DATE 1577836800

/* Whether the file contains exactly this. */
int has_text(const char *name, const char *text);
/* Whether there is something of this name, be it a dangling link. */
int there(const char *name);
/* Whether a listing of the folder has this name. */
int listed(const char *folder, const char *name);
/* The mode with the type of the file, 0 if there is none. Does not follow links. */
mode_t mode_of(const char *name);
ino_t inode_of(const char *name);
/* Writes all of the text to a descriptor and closes it. */
enum result put(int fd, const char *text);

/* Makes an operation's folder and what is in it. */
void prepare(const char *folder);
/* Says which folder is the current operation's. */
void enter(const char *folder);

#endif
