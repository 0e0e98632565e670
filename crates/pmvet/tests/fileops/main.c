/* A PM program that also does to files whatever can be done to them, and looks for itself whether that had its effect.
 *
 *   fileops POOL FOLDER OP [race]   map POOL and store to it; in between do OP in FOLDER/OP, or each in its own folder (`all`),
 *                                   or nothing (`none`); `missing` has no effect and says so
 *   fileops --prepare FOLDER        make FOLDER with a folder for each operation
 *   fileops --in FOLDER OP          do OP in FOLDER itself, without PM
 *   fileops --list                  print all operations, the system calls they need, and whether they are optional
 *
 * Ends with 0 if every operation had its effect, 9 if a call succeeded without it, 8 if one was refused. More is in the
 * environment: FILEOPS_REFUSALS=1 makes refusals as good as effects, FILEOPS_SKIP=a,b leaves operations out, FILEOPS_REPORT=PORT
 * sends what came of each operation to this UDP port, since pmvet does not show the output of every run and not every status. */
#include "fileops.h"

#include <arpa/inet.h>
#include <emmintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

char self[4096];

static const struct operation *const tables[] = {content_operations, name_operations, attribute_operations,
                                                 indirect_operations};
#define EVERY(operation)                                               \
    for (unsigned table = 0; table < sizeof tables / sizeof *tables; table++) \
        for (const struct operation *operation = tables[table]; operation->name; operation++)

/* The names of those that were refused and of those that had no effect, and a line about each of all. */
static char refusals[8192], misses[8192], lines[32768];

static void note(char *list, const char *name) {
    size_t used = strlen(list);
    snprintf(list + used, sizeof refusals - used, " %s", name);
}

static void tell(const char *result, const char *name, const char *why) {
    size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%s %s %s\n", result, name, why);
}

static void report(void) {
    const char *port = getenv("FILEOPS_REPORT");
    if (!port)
        return;
    struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)atoi(port)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || sendto(fd, lines, strlen(lines), 0, (struct sockaddr *)&to, sizeof to) < 0)
        perror("fileops: no report");
    close(fd);
}

static int skipped(const char *name) {
    const char *list = getenv("FILEOPS_SKIP");
    size_t length = strlen(name);
    for (; list && *list; list += strcspn(list, ","), list += *list == ',')
        if (strncmp(list, name, length) == 0 && (list[length] == ',' || list[length] == 0))
            return 1;
    return 0;
}

/* The errors of a call that somebody does not want. Others tell that the files are not what they should be. */
static int is_refusal(int error) {
    return error == EPERM || error == EACCES || error == ENOSYS || error == EOPNOTSUPP || error == EROFS || error == EXDEV ||
           error == ENOTTY;
}

static void perform(const struct operation *operation, const char *folder) {
    enter(folder);
    errno = 0;
    enum result result = operation->run();
    if (result == REFUSED && !is_refusal(errno))
        result = MISSING;
    if (result == DONE)
        *reason = 0;
    tell(result == DONE ? "done" : result == REFUSED ? "refused" : "missing", operation->name, reason);
    if (result == MISSING)
        note(misses, operation->name);
    else if (result == REFUSED && operation->optional < 2)
        note(refusals, operation->name);
}

static int verdict(void) {
    fputs(lines, stdout);
    /* The last lines, so that they are in the tail of the output that pmvet shows. */
    if (*refusals)
        printf("all refused:%s\n", refusals);
    if (*misses)
        printf("all missing:%s\n", misses);
    fflush(NULL);
    return *misses ? 9 : *refusals && !getenv("FILEOPS_REFUSALS") ? 8 : 0;
}

static int usage(const char *what) {
    fprintf(stderr, "fileops: %s\n", what);
    return 2;
}

static int operate(const char *folder, const char *name) {
    char path[8192];
    int known = strcmp(name, "none") == 0 || strcmp(name, "all") == 0 || strcmp(name, "missing") == 0;
    if (strcmp(name, "missing") == 0) {
        note(misses, name);
        tell("missing", name, "as it was told");
    }
    EVERY(operation) {
        if (strcmp(name, operation->name) != 0 && strcmp(name, "all") != 0)
            continue;
        known = 1;
        if (skipped(operation->name))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, operation->name);
        perform(operation, path);
    }
    if (!known)
        return usage("no such operation");
    if (*lines)
        report();
    return verdict();
}

/* ---- PM */

struct pool {
    _Alignas(64) uint64_t begun;
    _Alignas(64) uint64_t ended;
    _Alignas(64) uint64_t shared;
    _Alignas(64) uint64_t seen;
};

static void persist(const void *address) {
    _mm_clflush(address);
    _mm_sfence();
}

static _Atomic int written;

/* Acts on what the other thread stored and has not flushed yet. Recovery does not mind. */
static void *reader(void *argument) {
    struct pool *pool = argument;
    for (int turn = 1; turn <= 4; turn++) {
        while (atomic_load(&written) < turn)
            sched_yield();
        pool->seen = pool->shared;
        persist(&pool->seen);
    }
    return NULL;
}

static void race(struct pool *pool) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, reader, pool) != 0)
        exit(usage("no thread"));
    for (int turn = 1; turn <= 4; turn++) {
        pool->shared = pool->seen + turn;
        atomic_store(&written, turn);
        persist(&pool->shared);
    }
    pthread_join(thread, NULL);
}

static struct pool *map(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    struct stat found;
    if (fd < 0 || fstat(fd, &found) != 0 || (found.st_size < POOL_SIZE && ftruncate(fd, POOL_SIZE) != 0))
        return NULL;
    void *bytes = mmap(NULL, POOL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return bytes == MAP_FAILED ? NULL : bytes;
}

int main(int count, char **words) {
    umask(022);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return usage("no /proc");
    if (count == 2 && strcmp(words[1], "--list") == 0) {
        EVERY(operation)
            printf("%s %s %d\n", operation->name, operation->calls, operation->optional);
        return 0;
    }
    if (count == 3 && strcmp(words[1], "--prepare") == 0) {
        char path[8192];
        if (mkdir(words[2], 0755) != 0)
            return usage("the folder is there already");
        EVERY(operation) {
            snprintf(path, sizeof path, "%s/%s", words[2], operation->name);
            prepare(path);
        }
        return 0;
    }
    if (count == 4 && strcmp(words[1], "--in") == 0) {
        EVERY(operation)
            if (strcmp(operation->name, words[3]) == 0) {
                perform(operation, words[2]);
                return verdict();
            }
        return usage("no such operation");
    }
    /* An oracle gets the paths of the PM files as further arguments. */
    if (count < 4)
        return usage("POOL FOLDER OP [race]");
    struct pool *pool = map(words[1]);
    if (!pool)
        return usage("cannot map the pool");
    /* Whoever fuzzes wants to see its input read. */
    char input = 0;
    ssize_t got = read(STDIN_FILENO, &input, 1);
    pool->begun = pool->ended + 1 + (got == 1 && input == 'x');
    persist(&pool->begun);
    if (count > 4 && strcmp(words[4], "race") == 0)
        race(pool);
    int status = operate(words[2], words[3]);
    pool->ended = pool->begun;
    persist(&pool->ended);
    return status;
}
