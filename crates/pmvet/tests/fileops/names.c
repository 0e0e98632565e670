/* Operations on names: what is there, under which name, and where. */
#include "fileops.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

static enum result unlink_(void) {
    CALL(unlink(at("f")));
    SEE(!there("f") && !listed(".", "f"));
    SEE(access(at("f"), F_OK) < 0 && errno == ENOENT);
    return DONE;
}

static enum result unlinkat_(void) {
    int dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    CALL(unlinkat(dir, "f", 0));
    CALL(unlinkat(AT_FDCWD, at("empty"), AT_REMOVEDIR));
    SEE(!there("d/f") && !listed("d", "f") && !there("empty") && !listed(".", "empty"));
    close(dir);
    return DONE;
}

/* One of two names. */
static enum result unlink_hard(void) {
    struct stat found;
    CALL(unlink(at("hard")));
    SEE(!there("hard") && !listed(".", "hard"));
    SEE(stat(at("g"), &found) == 0 && has_text("g", G_TEXT));
    return DONE;
}

static enum result rename_(void) {
    CALL(rename(at("f"), at("moved")));
    SEE(!there("f") && !listed(".", "f"));
    SEE(has_text("moved", F_TEXT) && listed(".", "moved"));
    return DONE;
}

static enum result rename_over(void) {
    PASS_ON(put(open(at("f.tmp"), O_WRONLY | O_CREAT | O_EXCL, 0644), "new\n"));
    CALL(rename(at("f.tmp"), at("f")));
    CALL(rename(at("d/f"), at("d/e/x")));
    SEE(!there("f.tmp") && has_text("f", "new\n") && listed(".", "f"));
    SEE(!there("d/f") && has_text("d/e/x", INNER_TEXT));
    return DONE;
}

static enum result rename_noreplace(void) {
    SEE(renameat2(AT_FDCWD, at("f"), AT_FDCWD, at("g"), RENAME_NOREPLACE) < 0);
    if (errno != EEXIST)
        return refused("renameat2 onto a name that is taken");
    CALL(renameat2(AT_FDCWD, at("f"), AT_FDCWD, at("moved"), RENAME_NOREPLACE));
    SEE(!there("f") && has_text("moved", F_TEXT) && has_text("g", G_TEXT));
    return DONE;
}

static enum result rename_exchange(void) {
    CALL(renameat2(AT_FDCWD, at("f"), AT_FDCWD, at("d/f"), RENAME_EXCHANGE));
    SEE(has_text("f", INNER_TEXT) && has_text("d/f", F_TEXT));
    return DONE;
}

static enum result rename_dir(void) {
    CALL(rename(at("d"), at("moved")));
    SEE(!there("d") && !listed(".", "d") && listed(".", "moved"));
    SEE(has_text("moved/f", INNER_TEXT) && has_text("moved/e/x", DEEP_TEXT));
    SEE(listed("moved", "f") && listed("moved/e", "x"));
    return DONE;
}

static enum result rename_dir_over(void) {
    CALL(rename(at("d/e"), at("empty")));
    SEE(!there("d/e") && !listed("d", "e") && has_text("empty/x", DEEP_TEXT));
    return DONE;
}

static enum result rename_into(void) {
    CALL(rename(at("f"), at("d/e/f")));
    SEE(!there("f") && has_text("d/e/f", F_TEXT) && listed("d/e", "f"));
    return DONE;
}

static enum result rename_symlink(void) {
    CALL(rename(at("link"), at("d/link")));
    SEE(!there("link") && S_ISLNK(mode_of("d/link")) && has_text("f", F_TEXT));
    return DONE;
}

static enum result mkdir_(void) {
    CALL(mkdir(at("new"), 0750));
    SEE(mode_of("new") == (S_IFDIR | 0750) && listed(".", "new"));
    PASS_ON(put(open(at("new/x"), O_WRONLY | O_CREAT, 0644), "new\n"));
    SEE(has_text("new/x", "new\n") && listed("new", "x"));
    return DONE;
}

static enum result mkdirat_(void) {
    int dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    CALL(mkdirat(dir, "new", 0700));
    SEE(S_ISDIR(mode_of("d/new")) && listed("d", "new"));
    close(dir);
    return DONE;
}

static enum result rmdir_(void) {
    CALL(rmdir(at("empty")));
    SEE(!there("empty") && !listed(".", "empty"));
    return DONE;
}

static enum result rmdir_mkdir(void) {
    CALL(rmdir(at("empty")));
    CALL(mkdir(at("empty"), 0711));
    SEE(mode_of("empty") == (S_IFDIR | 0711) && listed(".", "empty"));
    PASS_ON(put(open(at("empty/x"), O_WRONLY | O_CREAT, 0644), "new\n"));
    SEE(has_text("empty/x", "new\n"));
    return DONE;
}

static enum result points_to(const char *name, const char *target) {
    char seen[256];
    ssize_t length = readlink(at(name), seen, sizeof seen);
    SEE(length == (ssize_t)strlen(target) && memcmp(seen, target, length) == 0);
    return DONE;
}

static enum result symlink_(void) {
    CALL(symlink("g", at("new")));
    PASS_ON(points_to("new", "g"));
    SEE(has_text("new", G_TEXT) && listed(".", "new"));
    return DONE;
}

static enum result symlinkat_(void) {
    int dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    CALL(symlinkat("../g", dir, "new"));
    PASS_ON(points_to("d/new", "../g"));
    SEE(has_text("d/new", G_TEXT) && listed("d", "new"));
    close(dir);
    return DONE;
}

static enum result link_(void) {
    struct stat found;
    CALL(link(at("f"), at("new")));
    SEE(has_text("new", F_TEXT) && listed(".", "new"));
    SEE(stat(at("f"), &found) == 0 && found.st_nlink == 2);
    return DONE;
}

static enum result linkat_(void) {
    int dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    CALL(linkat(dir, "f", AT_FDCWD, at("new"), 0));
    CALL(linkat(AT_FDCWD, at("link"), dir, "new", AT_SYMLINK_FOLLOW));
    SEE(has_text("new", INNER_TEXT) && has_text("d/new", F_TEXT) && listed("d", "new"));
    close(dir);
    return DONE;
}

static enum result link_write(void) {
    CALL(link(at("f"), at("d/new")));
    PASS_ON(put(open(at("d/new"), O_WRONLY | O_TRUNC), "new\n"));
    SEE(has_text("f", "new\n") && has_text("d/new", "new\n"));
    CALL(unlink(at("f")));
    SEE(!there("f") && has_text("d/new", "new\n"));
    return DONE;
}

static enum result mkfifo_(void) {
    CALL(mkfifo(at("new"), 0640));
    SEE(mode_of("new") == (S_IFIFO | 0640) && listed(".", "new"));
    return DONE;
}

static enum result mknod_(void) {
    CALL(mknod(at("new"), S_IFREG | 0640, 0));
    SEE(mode_of("new") == (S_IFREG | 0640) && has_text("new", "") && listed(".", "new"));
    return DONE;
}

/* Paths of sockets are short, so the name is relative. */
static enum result bind_socket(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int before = open(".", O_RDONLY | O_DIRECTORY), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    SEE(before >= 0 && fd >= 0 && chdir(at("d")) == 0);
    int bound = bind(fd, (struct sockaddr *)&name, sizeof name), error = errno;
    SEE(fchdir(before) == 0);
    errno = error;
    CALL(bound);
    SEE(S_ISSOCK(mode_of("d/socket")) && listed("d", "socket"));
    close(fd);
    close(before);
    return DONE;
}

const struct operation name_operations[] = {
    {"unlink", "unlink", unlink_, 0},
    {"unlinkat", "unlinkat", unlinkat_, 0},
    {"unlink_hard", "unlink", unlink_hard, 0},
    {"rename", "rename", rename_, 0},
    {"rename_over", "rename", rename_over, 0},
    {"rename_noreplace", "renameat2", rename_noreplace, 0},
    {"rename_exchange", "renameat2", rename_exchange, 0},
    {"rename_dir", "rename", rename_dir, 0},
    {"rename_dir_over", "rename", rename_dir_over, 0},
    {"rename_into", "rename", rename_into, 0},
    {"rename_symlink", "rename", rename_symlink, 0},
    {"mkdir", "mkdir", mkdir_, 0},
    {"mkdirat", "mkdirat", mkdirat_, 0},
    {"rmdir", "rmdir", rmdir_, 0},
    {"rmdir_mkdir", "rmdir,mkdir", rmdir_mkdir, 0},
    {"symlink", "symlink", symlink_, 0},
    {"symlinkat", "symlinkat", symlinkat_, 0},
    {"link", "link", link_, 0},
    {"linkat", "linkat", linkat_, 0},
    {"link_write", "link", link_write, 0},
    {"mkfifo", "mknod,mknodat", mkfifo_, 0},
    {"mknod", "mknod,mknodat", mknod_, 0},
    {"bind_socket", "bind", bind_socket, 0},
    {NULL, NULL, NULL, 0},
};
