/*
 * pair -- keeps two numbers in PM that must be equal after recovery
 *
 * usage: pair WAY POOL [N]
 *
 * The workload, `run`, writes both numbers N times, one after the other: a crash in between leaves them unequal. Most other
 * WAYs are recoveries that have to cope with that, each in a bad manner of its own. A recovery ends with status 0 if it
 * is content, with 1 if the numbers differ and it cannot help it, and with 9 if something is wrong with its files.
 */

#define _GNU_SOURCE
#include <emmintrin.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1 << 16)

struct pool {
	_Alignas(64) volatile uint64_t a;
	_Alignas(64) volatile uint64_t b;
};

static struct pool *pm;
static int pool_fd;
static const char *path;

static void die(const char *what)
{
	perror(what);
	exit(9);
}

static void persist(const volatile void *p)
{
	_mm_clflush((const void *)p);
	_mm_sfence();
}

static void open_pool(int flags)
{
	struct stat found;

	pool_fd = open(path, flags, 0644);
	/* The crash came before there was a pool: there is nothing to recover. */
	if (pool_fd < 0 && errno == ENOENT)
		exit(0);
	if (pool_fd < 0 || fstat(pool_fd, &found) != 0)
		die(path);
	if ((flags & O_CREAT) && found.st_size == 0 && ftruncate(pool_fd, SIZE) != 0)
		die("ftruncate");
	else if (!(flags & O_CREAT) && found.st_size == 0)
		exit(0);
	pm = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd, 0);
	if (pm == MAP_FAILED)
		die("mmap");
}

static int differ(void)
{
	return pm->a != pm->b;
}

/* Not inlined: a report of where the recovery hung has to name it. */
__attribute__((noinline)) static void spin_forever(void)
{
	for (;;)
		__asm__ volatile("");
}

static void *look(void *result)
{
	*(int *)result = differ();
	return NULL;
}

/* Writes to a file until there is no room; no file is too large for this one. */
static void fill(int fd)
{
	static char block[1 << 20];

	memset(block, 'x', sizeof block);
	signal(SIGXFSZ, SIG_IGN);
	while (write(fd, block, sizeof block) > 0)
		;
}

static int run(int n)
{
	open_pool(O_RDWR | O_CREAT);
	for (uint64_t i = pm->a; n > 0; n--) {
		i++;
		pm->a = i;
		persist(&pm->a);
		pm->b = i;
		persist(&pm->b);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char name[4096];
	const char *way = argc > 2 ? argv[1] : "";
	int found = 0, status;
	pthread_t thread;
	uint64_t number;

	if (argc < 3)
		return 2;
	path = argv[2];
	snprintf(name, sizeof name, "%s.junk", path);
	if (!strcmp(way, "run"))
		return run(argc > 3 ? atoi(argv[3]) : 3);
	if (!strcmp(way, "input")) {
		/* As many rounds as it is told; and it must be told as much again to recover. */
		int n = 0;

		if (scanf("%d", &n) != 1)
			return 7;
		open_pool(O_RDWR | O_CREAT);
		return differ() ? 1 : run(n);
	}
	if (!strcmp(way, "endless")) {
		open_pool(O_RDWR | O_CREAT);
		spin_forever();
	}
	if (!strcmp(way, "volatile"))
		return 0;

	open_pool(O_RDWR);
	if (!strcmp(way, "strict")) {
		found = differ();
	} else if (!strcmp(way, "lenient")) {
		pm->b = pm->a;
		persist(&pm->b);
	} else if (!strcmp(way, "never")) {
		found = 1;
	} else if (!strcmp(way, "fork")) {
		/* A child finds out, a grandchild of another outlives all. */
		if (fork() == 0)
			_exit(differ());
		wait(&status);
		found = WEXITSTATUS(status);
		if (fork() == 0) {
			setsid();
			if (fork() == 0)
				for (;;)
					pause();
			_exit(0);
		}
		wait(&status);
	} else if (!strcmp(way, "threads")) {
		for (int i = 0; i < 8 && !found; i++) {
			if (pthread_create(&thread, NULL, look, &found) != 0)
				die("pthread_create");
			pthread_join(thread, NULL);
		}
		/* One more that never ends. */
		pthread_create(&thread, NULL, (void *(*)(void *))(void *)spin_forever, NULL);
	} else if (!strcmp(way, "pwrite")) {
		/* Repairs by system calls, which the mapping must show; the file is longer afterwards. */
		number = pm->a;
		if (pwrite(pool_fd, &number, 8, (char *)&pm->b - (char *)pm) != 8)
			die("pwrite");
		if (pwrite(pool_fd, "end", 3, 2 * SIZE) != 3)
			die("pwrite");
		found = differ();
	} else if (!strcmp(way, "unlink")) {
		found = differ();
		if (unlink(path) != 0 || access(path, F_OK) == 0)
			die("unlink");
	} else if (!strcmp(way, "rename")) {
		found = differ();
		if (rename(path, name) != 0 || access(path, F_OK) == 0 || access(name, F_OK) != 0)
			die("rename");
	} else if (!strcmp(way, "truncate")) {
		found = differ();
		if (truncate(path, 0) != 0 || chmod(path, 0) != 0)
			die("truncate");
	} else if (!strcmp(way, "fill-pool")) {
		if (differ())
			fill(pool_fd);
	} else if (!strcmp(way, "fill-disk")) {
		for (int i = 0; differ(); i++) {
			snprintf(name, sizeof name, "%s.junk-%d", path, i);
			int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
			if (fd < 0)
				die("open");
			fill(fd);
		}
	} else if (!strcmp(way, "hang")) {
		if (differ())
			spin_forever();
	} else if (!strcmp(way, "sleep")) {
		while (differ())
			pause();
	} else if (!strcmp(way, "print")) {
		/* As many MiB as it is told. */
		static char text[1 << 20];

		found = differ();
		memset(text, '.', sizeof text);
		for (int i = argc > 3 ? atoi(argv[3]) : 1; i > 0; i--)
			if (write(1 + (i & 1), text, sizeof text) < 0)
				die("write");
		printf("the end of the output\n");
	} else if (!strcmp(way, "kill-group")) {
		if (differ())
			kill(0, SIGKILL);
	} else if (!strcmp(way, "litter")) {
		/* Leaves files all over the place. */
		found = differ();
		for (int i = 0; i < 3; i++) {
			snprintf(name, sizeof name, "%s.litter-%d", i ? path : "here", i);
			int fd = open(name, O_RDWR | O_CREAT, 0644);
			if (fd < 0 || write(fd, "litter", 6) != 6)
				die(name);
			close(fd);
		}
	} else if (!strcmp(way, "segv")) {
		if (differ())
			raise(SIGSEGV);
	} else {
		fprintf(stderr, "no such way: %s\n", way);
		return 2;
	}
	return found;
}
