/* Runs a command in which one system call fails, as it does in some containers: denied CALL ERRNO COMMAND...
 *
 * CALL is a system call, `no_new_privs` for the prctl of this name, or `newuser` for every way into a new user namespace. ERRNO is
 * EPERM or ENOSYS. `denied --probe` tells by its status whether this machine lets a user have namespaces with an overlay in them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name) {#name, SYS_##name}
static const struct {
    const char *name;
    long number;
} calls[] = {
    CALL(ptrace), CALL(process_vm_readv), CALL(process_vm_writev), CALL(seccomp), CALL(unshare), CALL(setns), CALL(mount),
    CALL(umount2), CALL(pivot_root), CALL(mount_setattr), CALL(clone3), CALL(memfd_create), CALL(pidfd_open),
    CALL(pidfd_send_signal), CALL(openat2), CALL(open_tree), CALL(move_mount), CALL(fsopen), CALL(fsconfig), CALL(fsmount),
    CALL(capset), CALL(userfaultfd), CALL(pidfd_getfd), CALL(chroot), CALL(execveat), CALL(personality),
};

static struct sock_filter program[32];
static unsigned short length;

static void add(unsigned short code, unsigned k, unsigned char jt, unsigned char jf) {
    program[length++] = (struct sock_filter)BPF_JUMP(code, k, jt, jf);
}

static void load(size_t at) {
    add(BPF_LD | BPF_W | BPF_ABS, (unsigned)at, 0, 0);
}

/* The call fails; if `mask` is not 0, only if its first argument has one of these bits. */
static void deny(long number, unsigned mask, int error) {
    load(offsetof(struct seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, mask ? 3 : 1);
    if (mask) {
        load(offsetof(struct seccomp_data, args[0]));
        add(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error, 0, 0);
}

static void deny_prctl(unsigned option, int error) {
    load(offsetof(struct seccomp_data, nr));
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3);
    load(offsetof(struct seccomp_data, args[0]));
    add(BPF_JMP | BPF_JEQ | BPF_K, option, 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error, 0, 0);
}

static int write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    int ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return ok;
}

/* Everything happens in a mount namespace of its own and ends with this process. */
static int probe(void) {
    char users[64], groups[64];
    snprintf(users, sizeof users, "%u %u 1", geteuid(), geteuid());
    snprintf(groups, sizeof groups, "%u %u 1", getegid(), getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return 1;
    if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", users) ||
        !write_file("/proc/self/gid_map", groups))
        return 1;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("tmpfs", "/tmp", "tmpfs", 0, NULL) != 0)
        return 1;
    if (mkdir("/tmp/u", 0700) != 0 || mkdir("/tmp/w", 0700) != 0)
        return 1;
    return mount("overlay", "/mnt", "overlay", 0, "lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/w,userxattr") != 0;
}

int main(int count, char **words) {
    if (count == 2 && strcmp(words[1], "--probe") == 0)
        return probe();
    if (count < 4) {
        fprintf(stderr, "denied CALL ERRNO COMMAND...\n");
        return 2;
    }
    int error = strcmp(words[2], "ENOSYS") == 0 ? ENOSYS : EPERM;
    if (strcmp(words[1], "newuser") == 0) {
        deny(SYS_unshare, CLONE_NEWUSER, error);
        deny(SYS_clone, CLONE_NEWUSER, error);
        /* Its flags are in memory, where a filter cannot look. The C library falls back to clone. */
        deny(SYS_clone3, 0, ENOSYS);
    } else if (strcmp(words[1], "no_new_privs") == 0) {
        deny_prctl(PR_SET_NO_NEW_PRIVS, error);
    } else {
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            if (strcmp(words[1], calls[i].name) == 0)
                deny(calls[i].number, 0, error);
        if (length == 0) {
            fprintf(stderr, "denied: no system call %s\n", words[1]);
            return 2;
        }
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    struct sock_fprog filter = {length, program};
    /* Without privileges a filter needs this; with them it would be one more difference. */
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)) {
        perror("denied: the filter");
        return 2;
    }
    execvp(words[3], words + 3);
    perror(words[3]);
    return 127;
}
