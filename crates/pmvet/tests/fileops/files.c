/* The folder that an operation works in, and questions about its files. */
#include "fileops.h"

#include <dirent.h>
#include <sys/xattr.h>

char reason[256];
static char folder[4096];

void enter(const char *path) {
    snprintf(folder, sizeof folder, "%s", path);
}

char *at(const char *name) {
    static char paths[16][8192];
    static unsigned next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

enum result refused(const char *what) {
    snprintf(reason, sizeof reason, "%s: %s", strerrorname_np(errno), what);
    return REFUSED;
}

enum result missing(const char *what) {
    snprintf(reason, sizeof reason, "%s (errno %d)", what, errno);
    return MISSING;
}

int has_text(const char *name, const char *text) {
    char buffer[4096];
    int fd = open(at(name), O_RDONLY);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, buffer, sizeof buffer);
    close(fd);
    return got == (ssize_t)strlen(text) && memcmp(buffer, text, strlen(text)) == 0;
}

int there(const char *name) {
    struct stat found;
    return lstat(at(name), &found) == 0;
}

int listed(const char *where, const char *name) {
    DIR *dir = opendir(at(where));
    if (!dir)
        return 0;
    int found = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        found += strcmp(entry->d_name, name) == 0;
    closedir(dir);
    return found == 1;
}

mode_t mode_of(const char *name) {
    struct stat found;
    return lstat(at(name), &found) == 0 ? found.st_mode : 0;
}

ino_t inode_of(const char *name) {
    struct stat found;
    return lstat(at(name), &found) == 0 ? found.st_ino : 0;
}

enum result put(int fd, const char *text) {
    CALL(fd);
    CALL(write(fd, text, strlen(text)));
    CALL(close(fd));
    return DONE;
}

/* ---- What is there at first */

static void insist(int ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "fileops: cannot prepare %s: %s: %s\n", folder, what, strerror(errno));
    exit(2);
}

static void make(const char *name, const char *text, mode_t mode) {
    int fd = open(at(name), O_WRONLY | O_CREAT | O_EXCL, mode);
    insist(fd >= 0 && put(fd, text) == DONE && chmod(at(name), mode) == 0, name);
}

void prepare(const char *path) {
    enter(path);
    insist(mkdir(path, 0755) == 0, "the folder");
    make("f", F_TEXT, 0644);
    make("g", G_TEXT, 0640);
    insist(mkdir(at("d"), 0755) == 0, "d");
    make("d/f", INNER_TEXT, 0644);
    insist(mkdir(at("d/e"), 0750) == 0, "d/e");
    make("d/e/x", DEEP_TEXT, 0600);
    insist(mkdir(at("empty"), 0755) == 0, "empty");
    insist(symlink("f", at("link")) == 0, "link");
    insist(symlink("d", at("dlink")) == 0, "dlink");
    insist(symlink("nowhere", at("dangling")) == 0, "dangling");
    insist(link(at("g"), at("hard")) == 0, "hard");
    insist(mkfifo(at("fifo"), 0644) == 0, "fifo");
    make("pool", "pool", 0644);
    insist(truncate(at("pool"), POOL_SIZE) == 0, "pool");
    /* Not every file system has them. */
    setxattr(at("f"), "user.kept", "1", 1, 0);
    /* So that a change of a time cannot go unnoticed. */
    struct timespec old[2] = {{1000000000, 1}, {1000000000, 2}};
    insist(utimensat(AT_FDCWD, at("f"), old, 0) == 0, "the time of f");
    insist(utimensat(AT_FDCWD, at("link"), old, AT_SYMLINK_NOFOLLOW) == 0, "the time of link");
    insist(utimensat(AT_FDCWD, at("d"), old, 0) == 0, "the time of d");
}
