/* Operations that change what is in a file, or make one. */
#include "fileops.h"

#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static enum result open_wronly(void) {
    PASS_ON(put(open(at("f"), O_WRONLY), "FIRST"));
    SEE(has_text("f", "FIRST\nsecond\n"));
    return DONE;
}

static enum result open_rdwr(void) {
    char text[6] = "";
    int fd = open(at("f"), O_RDWR);
    CALL(fd);
    SEE(read(fd, text, 5) == 5 && strcmp(text, "first") == 0);
    PASS_ON(put(fd, "!"));
    SEE(has_text("f", "first!second\n"));
    return DONE;
}

static enum result open_append(void) {
    PASS_ON(put(open(at("f"), O_WRONLY | O_APPEND), "third\n"));
    SEE(has_text("f", F_TEXT "third\n"));
    return DONE;
}

static enum result open_trunc(void) {
    PASS_ON(put(open(at("f"), O_WRONLY | O_TRUNC), "new\n"));
    SEE(has_text("f", "new\n"));
    return DONE;
}

/* Linux truncates the file all the same. */
static enum result open_rdonly_trunc(void) {
    int fd = open(at("f"), O_RDONLY | O_TRUNC);
    CALL(fd);
    CALL(close(fd));
    SEE(has_text("f", ""));
    return DONE;
}

static enum result open_creat(void) {
    PASS_ON(put(open(at("new"), O_WRONLY | O_CREAT, 0640), "new\n"));
    SEE(has_text("new", "new\n") && listed(".", "new"));
    SEE((mode_of("new") & 07777) == 0640);
    return DONE;
}

static enum result open_excl(void) {
    PASS_ON(put(open(at("d/new"), O_RDWR | O_CREAT | O_EXCL, 0600), "new\n"));
    SEE(has_text("d/new", "new\n") && listed("d", "new"));
    SEE(open(at("d/new"), O_RDWR | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
    SEE(open(at("f"), O_RDWR | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
    return DONE;
}

static enum result creat_(void) {
    PASS_ON(put(creat(at("f"), 0600), "new\n"));
    PASS_ON(put(creat(at("new"), 0600), "new\n"));
    SEE(has_text("f", "new\n") && has_text("new", "new\n") && listed(".", "new"));
    return DONE;
}

static enum result truncate_(void) {
    CALL(truncate(at("f"), 5));
    SEE(has_text("f", "first"));
    return DONE;
}

static enum result ftruncate_(void) {
    int fd = open(at("f"), O_WRONLY);
    CALL(fd);
    CALL(ftruncate(fd, 5));
    CALL(close(fd));
    SEE(has_text("f", "first"));
    return DONE;
}

static enum result through_symlink(void) {
    PASS_ON(put(open(at("link"), O_WRONLY | O_TRUNC), "new\n"));
    SEE(has_text("f", "new\n") && S_ISLNK(mode_of("link")));
    PASS_ON(put(open(at("dlink/new"), O_WRONLY | O_CREAT, 0644), "new\n"));
    SEE(has_text("d/new", "new\n") && listed("d", "new"));
    return DONE;
}

static enum result dangling_symlink(void) {
    PASS_ON(put(open(at("dangling"), O_WRONLY | O_CREAT, 0644), "new\n"));
    SEE(has_text("nowhere", "new\n") && listed(".", "nowhere"));
    return DONE;
}

static enum result openat_dirfd(void) {
    int dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    PASS_ON(put(openat(dir, "f", O_WRONLY | O_TRUNC), "new\n"));
    PASS_ON(put(openat(dir, "e/y", O_WRONLY | O_CREAT, 0644), "new\n"));
    PASS_ON(put(openat(dir, "../g", O_WRONLY | O_TRUNC), "new\n"));
    SEE(has_text("d/f", "new\n") && has_text("d/e/y", "new\n") && has_text("g", "new\n"));
    close(dir);
    return DONE;
}

static enum result openat2_(void) {
    struct open_how how = {.flags = O_WRONLY | O_CREAT, .mode = 0644, .resolve = RESOLVE_NO_MAGICLINKS};
    PASS_ON(put((int)syscall(SYS_openat2, AT_FDCWD, at("new"), &how, sizeof how), "new\n"));
    how = (struct open_how){.flags = O_WRONLY | O_TRUNC};
    PASS_ON(put((int)syscall(SYS_openat2, AT_FDCWD, at("f"), &how, sizeof how), "new\n"));
    SEE(has_text("new", "new\n") && has_text("f", "new\n"));
    return DONE;
}

static enum result reopened(int flags) {
    char name[64];
    int fd = open(at("f"), flags);
    SEE(fd >= 0);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    PASS_ON(put(open(name, O_WRONLY | O_TRUNC), "new\n"));
    SEE(has_text("f", "new\n"));
    close(fd);
    return DONE;
}

static enum result proc_fd(void) {
    return reopened(O_RDONLY);
}

static enum result proc_fd_of_path(void) {
    return reopened(O_PATH);
}

static enum result tmpfile_linkat(void) {
    char name[64];
    int fd = open(at("d"), O_TMPFILE | O_RDWR, 0644);
    CALL(fd);
    CALL(write(fd, "new\n", 4));
    SEE(!there("d/new"));
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    CALL(linkat(AT_FDCWD, name, AT_FDCWD, at("d/new"), AT_SYMLINK_FOLLOW));
    CALL(close(fd));
    SEE(has_text("d/new", "new\n") && listed("d", "new"));
    return DONE;
}

static enum result mmap_shared(void) {
    int fd = open(at("f"), O_RDWR);
    CALL(fd);
    char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CALL(bytes == MAP_FAILED ? -1 : 0);
    memcpy(bytes, "FIRST", 5);
    CALL(msync(bytes, 4096, MS_SYNC));
    SEE(has_text("f", "FIRST\nsecond\n"));
    munmap(bytes, 4096);
    close(fd);
    return DONE;
}

static enum result copy_range(void) {
    int from = open(at("g"), O_RDONLY), to = open(at("f"), O_WRONLY);
    SEE(from >= 0);
    CALL(to);
    ssize_t copied = copy_file_range(from, NULL, to, NULL, 6, 0);
    if (copied < 0 && errno == EXDEV) {
        /* As between file systems: every program has to be prepared for that, and copies by itself. */
        char text[6];
        SEE(read(from, text, 6) == 6);
        copied = write(to, text, 6);
    }
    CALL(copied);
    SEE(copied == 6 && has_text("f", "other\nsecond\n"));
    close(from);
    close(to);
    return DONE;
}

static enum result send_file(void) {
    int from = open(at("g"), O_RDONLY), to = open(at("f"), O_WRONLY);
    SEE(from >= 0);
    CALL(to);
    ssize_t sent = sendfile(to, from, NULL, 6);
    CALL(sent);
    SEE(sent == 6 && has_text("f", "other\nsecond\n"));
    close(from);
    close(to);
    return DONE;
}

static enum result fallocate_(void) {
    struct stat found;
    int fd = open(at("f"), O_RDWR);
    CALL(fd);
    CALL(fallocate(fd, 0, 0, 20000));
    CALL(close(fd));
    SEE(stat(at("f"), &found) == 0 && found.st_size == 20000);
    return DONE;
}

static enum result punch_hole(void) {
    char bytes[8] = "";
    int fd = open(at("pool"), O_RDWR);
    CALL(fd);
    CALL(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    SEE(pread(fd, bytes, 4, 0) == 4 && memcmp(bytes, "\0\0\0\0", 4) == 0);
    close(fd);
    return DONE;
}

static enum result pwritev2_(void) {
    struct iovec parts[2] = {{"FIR", 3}, {"ST", 2}};
    int fd = open(at("f"), O_WRONLY);
    CALL(fd);
    ssize_t written = pwritev2(fd, parts, 2, 0, RWF_SYNC);
    CALL(written);
    SEE(written == 5 && has_text("f", "FIRST\nsecond\n"));
    close(fd);
    return DONE;
}

static enum result splice_(void) {
    int ends[2], fd = open(at("f"), O_WRONLY);
    CALL(fd);
    SEE(pipe(ends) == 0 && write(ends[1], "FIRST", 5) == 5);
    ssize_t moved = splice(ends[0], NULL, fd, NULL, 5, 0);
    CALL(moved);
    SEE(moved == 5 && has_text("f", "FIRST\nsecond\n"));
    close(ends[0]);
    close(ends[1]);
    close(fd);
    return DONE;
}

static enum result synced(void) {
    int fd = open(at("f"), O_WRONLY);
    CALL(fd);
    CALL(pwrite(fd, "FIRST", 5, 0));
    CALL(sync_file_range(fd, 0, 5, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    CALL(fsync(fd));
    CALL(close(fd));
    SEE(has_text("f", "FIRST\nsecond\n"));
    return DONE;
}

/* A pool that is thrown away and made anew, as programs do that find theirs damaged. */
static enum result pool_anew(void) {
    ino_t before = inode_of("pool");
    /* As long as this is open, the new one cannot have its inode. */
    int old = open(at("pool"), O_RDONLY);
    SEE(old >= 0);
    CALL(unlink(at("pool")));
    SEE(!there("pool") && !listed(".", "pool"));
    int fd = open(at("pool"), O_RDWR | O_CREAT | O_EXCL, 0600);
    CALL(fd);
    CALL(ftruncate(fd, POOL_SIZE));
    char *bytes = mmap(NULL, POOL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CALL(bytes == MAP_FAILED ? -1 : 0);
    SEE(memcmp(bytes, "\0\0\0\0", 4) == 0);
    memcpy(bytes, "anew", 4);
    char seen[5] = "";
    SEE(pread(fd, seen, 4, 0) == 4 && strcmp(seen, "anew") == 0);
    SEE(pread(old, seen, 4, 0) == 4 && strcmp(seen, "pool") == 0);
    SEE(listed(".", "pool") && inode_of("pool") != before);
    munmap(bytes, POOL_SIZE);
    close(fd);
    close(old);
    return DONE;
}

const struct operation content_operations[] = {
    {"open_wronly", "open,openat", open_wronly, 0},
    {"open_rdwr", "open,openat", open_rdwr, 0},
    {"open_append", "open,openat", open_append, 0},
    {"open_trunc", "open,openat", open_trunc, 0},
    {"open_rdonly_trunc", "open,openat", open_rdonly_trunc, 0},
    {"open_creat", "open,openat", open_creat, 0},
    {"open_excl", "open,openat", open_excl, 0},
    {"creat", "creat", creat_, 0},
    {"truncate", "truncate", truncate_, 0},
    {"ftruncate", "open,openat,ftruncate", ftruncate_, 0},
    {"through_symlink", "open,openat", through_symlink, 0},
    {"dangling_symlink", "open,openat", dangling_symlink, 0},
    {"openat_dirfd", "openat", openat_dirfd, 0},
    {"openat2", "openat2", openat2_, 0},
    {"proc_fd", "open,openat", proc_fd, 0},
    {"proc_fd_of_path", "open,openat", proc_fd_of_path, 0},
    {"tmpfile_linkat", "open,openat,linkat", tmpfile_linkat, 0},
    {"mmap_shared", "open,openat,mmap", mmap_shared, 0},
    {"copy_file_range", "open,openat,copy_file_range", copy_range, 0},
    {"sendfile", "open,openat,sendfile", send_file, 0},
    {"fallocate", "open,openat,fallocate", fallocate_, 0},
    {"punch_hole", "open,openat,fallocate", punch_hole, 1},
    {"pwritev2", "open,openat,pwritev2", pwritev2_, 0},
    {"splice", "open,openat,splice", splice_, 0},
    {"synced", "open,openat,fsync,sync_file_range", synced, 0},
    {"pool_anew", "unlink,open,openat", pool_anew, 0},
    {NULL, NULL, NULL, 0},
};
