/* Operations on what is known about a file: mode, owner, times, extended attributes, flags. */
#include "fileops.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static const struct timespec THEN[2] = {{1200000000, 3}, {1200000000, 4}};

static int modified_then(const char *name) {
    struct stat found;
    return lstat(at(name), &found) == 0 && (found.st_mtim.tv_sec == 1200000000 || found.st_mtim.tv_sec == FIXED_DATE);
}

static int owned_by_us(const char *name) {
    struct stat found;
    return lstat(at(name), &found) == 0 && found.st_uid == geteuid() && found.st_gid == getegid();
}

static int has_attribute(const char *name, const char *attribute, const char *value) {
    char seen[64];
    ssize_t length = getxattr(at(name), attribute, seen, sizeof seen);
    return length == (ssize_t)strlen(value) && memcmp(seen, value, length) == 0;
}

static enum result chmod_(void) {
    CALL(chmod(at("f"), 0601));
    SEE(mode_of("f") == (S_IFREG | 0601));
    return DONE;
}

static enum result chmod_dir(void) {
    CALL(chmod(at("d"), 0711));
    SEE(mode_of("d") == (S_IFDIR | 0711) && has_text("d/f", INNER_TEXT));
    return DONE;
}

static enum result fchmod_rdonly(void) {
    int fd = open(at("f"), O_RDONLY);
    SEE(fd >= 0);
    CALL(fchmod(fd, 0601));
    SEE(mode_of("f") == (S_IFREG | 0601));
    close(fd);
    return DONE;
}

static enum result fchmodat_(void) {
    int dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    CALL(fchmodat(dir, "f", 0601, 0));
    SEE(mode_of("d/f") == (S_IFREG | 0601));
    close(dir);
    return DONE;
}

static enum result fchmodat2_(void) {
    CALL(syscall(SYS_fchmodat2, AT_FDCWD, at("f"), 0601, AT_SYMLINK_NOFOLLOW));
    SEE(mode_of("f") == (S_IFREG | 0601));
    return DONE;
}

static enum result chown_(void) {
    CALL(chown(at("f"), geteuid(), getegid()));
    SEE(owned_by_us("f"));
    return DONE;
}

static enum result lchown_(void) {
    CALL(lchown(at("link"), geteuid(), getegid()));
    SEE(owned_by_us("link") && S_ISLNK(mode_of("link")));
    return DONE;
}

static enum result fchown_rdonly(void) {
    int fd = open(at("f"), O_RDONLY);
    SEE(fd >= 0);
    CALL(fchown(fd, geteuid(), getegid()));
    SEE(owned_by_us("f"));
    close(fd);
    return DONE;
}

static enum result fchownat_(void) {
    CALL(fchownat(AT_FDCWD, at("d"), geteuid(), getegid(), AT_SYMLINK_NOFOLLOW));
    SEE(owned_by_us("d"));
    return DONE;
}

static enum result utime_(void) {
    struct utimbuf then = {1200000000, 1200000000};
    CALL(syscall(SYS_utime, at("f"), &then));
    SEE(modified_then("f"));
    return DONE;
}

static enum result utimes_(void) {
    struct timeval then[2] = {{1200000000, 1}, {1200000000, 1}};
    CALL(syscall(SYS_utimes, at("f"), then));
    SEE(modified_then("f"));
    return DONE;
}

static enum result utimensat_(void) {
    CALL(utimensat(AT_FDCWD, at("d"), THEN, 0));
    SEE(modified_then("d"));
    return DONE;
}

static enum result utimensat_link(void) {
    CALL(utimensat(AT_FDCWD, at("link"), THEN, AT_SYMLINK_NOFOLLOW));
    SEE(modified_then("link"));
    return DONE;
}

static enum result futimens_rdonly(void) {
    int fd = open(at("f"), O_RDONLY);
    SEE(fd >= 0);
    CALL(futimens(fd, THEN));
    SEE(modified_then("f"));
    close(fd);
    return DONE;
}

static enum result setxattr_(void) {
    CALL(setxattr(at("f"), "user.new", "new", 3, 0));
    SEE(has_attribute("f", "user.new", "new") && has_attribute("f", "user.kept", "1"));
    return DONE;
}

static enum result lsetxattr_(void) {
    CALL(lsetxattr(at("d"), "user.new", "new", 3, 0));
    SEE(has_attribute("d", "user.new", "new"));
    return DONE;
}

static enum result fsetxattr_rdonly(void) {
    int fd = open(at("f"), O_RDONLY);
    SEE(fd >= 0);
    CALL(fsetxattr(fd, "user.new", "new", 3, 0));
    SEE(has_attribute("f", "user.new", "new"));
    close(fd);
    return DONE;
}

static enum result removexattr_(void) {
    CALL(removexattr(at("f"), "user.kept"));
    SEE(!has_attribute("f", "user.kept", "1"));
    return DONE;
}

static enum result fremovexattr_rdonly(void) {
    int fd = open(at("f"), O_RDONLY);
    SEE(fd >= 0);
    CALL(fremovexattr(fd, "user.kept"));
    SEE(!has_attribute("f", "user.kept", "1"));
    close(fd);
    return DONE;
}

static enum result ioctl_flags(void) {
    int flags = 0, fd = open(at("f"), O_RDONLY);
    SEE(fd >= 0);
    CALL(ioctl(fd, FS_IOC_GETFLAGS, &flags));
    flags |= FS_NODUMP_FL;
    CALL(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    flags = 0;
    SEE(ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && flags & FS_NODUMP_FL);
    close(fd);
    return DONE;
}

const struct operation attribute_operations[] = {
    {"chmod", "chmod", chmod_, 0},
    {"chmod_dir", "chmod", chmod_dir, 0},
    {"fchmod_rdonly", "fchmod", fchmod_rdonly, 0},
    {"fchmodat", "fchmodat", fchmodat_, 0},
    {"fchmodat2", "fchmodat2", fchmodat2_, 1},
    {"chown", "chown", chown_, 0},
    {"lchown", "lchown", lchown_, 0},
    {"fchown_rdonly", "fchown", fchown_rdonly, 0},
    {"fchownat", "fchownat", fchownat_, 0},
    {"utime", "utime", utime_, 0},
    {"utimes", "utimes", utimes_, 0},
    {"utimensat", "utimensat", utimensat_, 0},
    {"utimensat_link", "utimensat", utimensat_link, 0},
    {"futimens_rdonly", "utimensat", futimens_rdonly, 0},
    {"setxattr", "setxattr", setxattr_, 1},
    {"lsetxattr", "lsetxattr", lsetxattr_, 1},
    {"fsetxattr_rdonly", "fsetxattr", fsetxattr_rdonly, 1},
    {"removexattr", "removexattr", removexattr_, 1},
    {"fremovexattr_rdonly", "fremovexattr", fremovexattr_rdonly, 1},
    {"ioctl_flags", "ioctl", ioctl_flags, 2},
    {NULL, NULL, NULL, 0},
};
