/* Operations by way of something else: a shell and its programs, a child, a thread, the current folder, file handles, mounts. */
#include "fileops.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

/* How a child ended that runs this program, or a command line in the operation's folder. */
static int child(char *const words[]) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return -1;
    if (pid == 0) {
        /* The input is for the program itself. */
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing >= 0 && dup2(nothing, STDIN_FILENO) == 0 && chdir(at(".")) == 0)
            execv(words[0], words);
        _exit(126);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

/* Programs say with a message and a status that a call was refused; which error it was, only they know. */
static enum result shell(const char *line) {
    char *const words[] = {"/bin/sh", "-c", (char *)line, NULL};
    int status = child(words);
    if (status == 0)
        return DONE;
    if (!WIFEXITED(status))
        return missing(line);
    errno = EPERM;
    return refused(line);
}

static enum result sh_pool(void) {
    PASS_ON(shell("rm -f pool && cp g pool"));
    SEE(has_text("pool", G_TEXT) && listed(".", "pool"));
    return DONE;
}

static enum result sh_dd(void) {
    PASS_ON(shell("dd if=g of=f conv=notrunc status=none && dd if=g of=new status=none"));
    SEE(has_text("f", "other\nsecond\n") && has_text("new", G_TEXT));
    return DONE;
}

static enum result sh_truncate(void) {
    PASS_ON(shell("truncate -s 5 f"));
    SEE(has_text("f", "first"));
    return DONE;
}

static enum result sh_write(void) {
    PASS_ON(shell("echo hi > f && echo hi > new"));
    SEE(has_text("f", "hi\n") && has_text("new", "hi\n"));
    return DONE;
}

static enum result sh_append(void) {
    PASS_ON(shell("echo hi >> f && echo hi >> d/e/x"));
    SEE(has_text("f", F_TEXT "hi\n") && has_text("d/e/x", DEEP_TEXT "hi\n"));
    return DONE;
}

static enum result sh_mv_dir(void) {
    PASS_ON(shell("mv d moved"));
    SEE(!there("d") && !listed(".", "d") && has_text("moved/f", INNER_TEXT) && has_text("moved/e/x", DEEP_TEXT));
    return DONE;
}

static enum result sh_mv_file(void) {
    PASS_ON(shell("mv f g && mv d/f empty"));
    SEE(!there("f") && has_text("g", F_TEXT) && !there("d/f") && has_text("empty/f", INNER_TEXT));
    return DONE;
}

static enum result sh_rm_r(void) {
    PASS_ON(shell("rm -r d"));
    SEE(!there("d") && !listed(".", "d"));
    return DONE;
}

static enum result sh_ln_sf(void) {
    PASS_ON(shell("ln -sf g link"));
    SEE(S_ISLNK(mode_of("link")) && has_text("link", G_TEXT));
    return DONE;
}

static enum result sh_cp_a(void) {
    PASS_ON(shell("cp -a d copy"));
    SEE(has_text("copy/f", INNER_TEXT) && has_text("copy/e/x", DEEP_TEXT) && (mode_of("copy/e") & 07777) == 0750);
    return DONE;
}

static enum result sh_sed_i(void) {
    PASS_ON(shell("sed -i s/first/FIRST/ f"));
    SEE(has_text("f", "FIRST\nsecond\n"));
    return DONE;
}

static enum result sh_install(void) {
    PASS_ON(shell("install -D -m 600 g new/deep/g"));
    SEE(has_text("new/deep/g", G_TEXT) && mode_of("new/deep/g") == (S_IFREG | 0600));
    return DONE;
}

static enum result sh_touch(void) {
    PASS_ON(shell("touch -d 2008-01-10 f && touch new"));
    struct stat found;
    /* Wherever on earth. */
    SEE(stat(at("f"), &found) == 0 && (labs(found.st_mtime - 1199923200) <= 86400 || found.st_mtime == FIXED_DATE));
    SEE(has_text("new", ""));
    return DONE;
}

/* What a child did is there for its parent. */
static enum result by_child(void) {
    fflush(NULL);
    pid_t pid = fork();
    SEE(pid >= 0);
    if (pid == 0) {
        int ok = rename(at("f"), at("d/moved")) == 0 && mkdir(at("new"), 0755) == 0;
        _exit(ok ? 0 : errno);
    }
    int status = 0;
    SEE(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    errno = WEXITSTATUS(status);
    CALL(errno ? -1 : 0);
    SEE(!there("f") && has_text("d/moved", F_TEXT) && S_ISDIR(mode_of("new")) && listed("d", "moved"));
    return DONE;
}

/* The same program, started anew. */
static enum result by_exec(void) {
    char *const words[] = {self, "--in", at("."), "rename_over", NULL};
    int status = child(words);
    SEE(WIFEXITED(status));
    errno = EPERM;
    CALL(status == 8 << 8 ? -1 : 0);
    SEE(status == 0);
    SEE(has_text("f", "new\n") && !there("d/f") && has_text("d/e/x", INNER_TEXT));
    return DONE;
}

static void *in_thread(void *error) {
    int ok = unlink(at("f")) == 0 && mkdir(at("f"), 0755) == 0 && chmod(at("g"), 0600) == 0;
    *(int *)error = ok ? 0 : errno;
    return NULL;
}

static enum result by_thread(void) {
    pthread_t thread;
    int error = 0;
    SEE(pthread_create(&thread, NULL, in_thread, &error) == 0);
    SEE(pthread_join(thread, NULL) == 0);
    errno = error;
    CALL(error ? -1 : 0);
    SEE(S_ISDIR(mode_of("f")) && mode_of("g") == (S_IFREG | 0600));
    return DONE;
}

/* Relative names, in a current folder that was entered by its name or by a descriptor. */
static enum result relative(void) {
    PASS_ON(put(open("f", O_WRONLY | O_TRUNC), "new\n"));
    CALL(unlink("e/x"));
    CALL(symlink("f", "new"));
    CALL(rename("../g", "g"));
    return DONE;
}

static enum result in_folder(int by_descriptor) {
    int before = open(".", O_RDONLY | O_DIRECTORY), dir = open(at("d"), O_RDONLY | O_DIRECTORY);
    SEE(before >= 0 && dir >= 0);
    SEE((by_descriptor ? fchdir(dir) : chdir(at("d"))) == 0);
    enum result result = relative();
    SEE(fchdir(before) == 0);
    close(before);
    close(dir);
    PASS_ON(result);
    SEE(has_text("d/f", "new\n") && !there("d/e/x") && has_text("d/new", "new\n"));
    SEE(!there("g") && has_text("d/g", G_TEXT));
    return DONE;
}

static enum result chdir_relative(void) {
    return in_folder(0);
}

static enum result fchdir_relative(void) {
    return in_folder(1);
}

/* A handle leads to the file itself, whatever is mounted above it. */
static enum result by_handle(void) {
    union {
        struct file_handle handle;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } of = {.handle.handle_bytes = MAX_HANDLE_SZ};
    int mount = 0, dir = open(at("."), O_RDONLY | O_DIRECTORY);
    SEE(dir >= 0);
    CALL(name_to_handle_at(AT_FDCWD, at("f"), &of.handle, &mount, 0));
    PASS_ON(put(open_by_handle_at(dir, &of.handle, O_WRONLY | O_TRUNC), "new\n"));
    SEE(has_text("f", "new\n"));
    close(dir);
    return DONE;
}

/* A mount that shows the folder under another name, and one that hides it. */
static enum result by_mount(void) {
    CALL(mount(at("d"), at("empty"), NULL, MS_BIND, NULL));
    enum result result = put(open(at("empty/f"), O_WRONLY | O_TRUNC), "new\n");
    int seen = has_text("d/f", "new\n");
    SEE(umount2(at("empty"), MNT_DETACH) == 0);
    PASS_ON(result);
    SEE(seen && has_text("d/f", "new\n"));
    return DONE;
}

const struct operation indirect_operations[] = {
    {"sh_pool", "unlink,unlinkat,open,openat", sh_pool, 0},
    {"sh_dd", "open,openat", sh_dd, 0},
    {"sh_truncate", "open,openat,ftruncate", sh_truncate, 0},
    {"sh_write", "open,openat", sh_write, 0},
    {"sh_append", "open,openat", sh_append, 0},
    {"sh_mv_dir", "rename,renameat,renameat2,mkdir,mkdirat", sh_mv_dir, 0},
    {"sh_mv_file", "rename,renameat,renameat2", sh_mv_file, 0},
    {"sh_rm_r", "unlinkat", sh_rm_r, 0},
    {"sh_ln_sf", "symlink,symlinkat,renameat,rename", sh_ln_sf, 0},
    {"sh_cp_a", "mkdir,mkdirat,open,openat,fchown,fchmod,utimensat", sh_cp_a, 0},
    {"sh_sed_i", "open,openat,rename,fchmod,fchown", sh_sed_i, 0},
    {"sh_install", "mkdir,mkdirat,open,openat,fchmod,chmod", sh_install, 0},
    {"sh_touch", "open,openat,utimensat", sh_touch, 0},
    {"by_child", "rename,mkdir", by_child, 0},
    {"by_exec", "rename", by_exec, 0},
    {"by_thread", "unlink,mkdir,chmod", by_thread, 0},
    {"chdir_relative", "open,openat,unlink,symlink,rename", chdir_relative, 0},
    {"fchdir_relative", "open,openat,unlink,symlink,rename", fchdir_relative, 0},
    {"by_handle", "name_to_handle_at,open_by_handle_at", by_handle, 2},
    {"by_mount", "mount", by_mount, 2},
    {NULL, NULL, NULL, 0},
};
