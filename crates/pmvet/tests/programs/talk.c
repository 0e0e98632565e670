/*
 * talk serve [MODE...] POOL NAME: a server on the abstract socket NAME, for one client at a time. Requests are `put K V`, `list` and
 * `shutdown`; K is 0 to 7.
 * talk ask NAME [REQUEST...]: a client. Each request is sent with a newline, unless it ends with a dot; `_` stands for a newline within.
 * It prints what is replied to `list`.
 * talk tell NAME REQUEST...: the same, and it waits for no reply.
 * talk dump POOL: what the table holds.
 *
 * Modes:
 *   late     the value is flushed after the reply
 *   greets   the client is greeted
 *   wordy    a reply has three lines, each written by itself
 *   long     a request has two lines: `put K`, and the value
 *   raw      a request ends with a dot, and a reply is one byte
 *   mute     nothing is replied
 *   marked   operations are marked, and a reply comes before they are done
 */
#include <fcntl.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../../../include/pmvet.h"

#define KEYS 8

/* One line each, so that none is persistent by the flush of another. */
struct slot {
	uint64_t value;
	uint64_t unused[7];
};

static struct slot *slots;
static int late, greets, wordy, is_long, raw, mute, marked;

static void fail(const char *what)
{
	perror(what);
	exit(2);
}

static void say(int fd, const char *text)
{
	if (write(fd, text, strlen(text)) < 0)
		fail("write");
}

static void answer(int fd, const char *text)
{
	if (mute)
		return;
	say(fd, text);
	if (wordy) {
		say(fd, "that is\n");
		say(fd, "all\n");
	}
}

static void operation(int fd, const char *line)
{
	unsigned key = 0, value = 0;

	if (sscanf(line, "put %u %u", &key, &value) == 2) {
		struct slot *slot = &slots[key % KEYS];

		if (marked) {
			answer(fd, "ok\n");
			PMVET_OP_BEGIN(0);
		}
		*(volatile uint64_t *)&slot->value = value;
		if (late && !marked)
			answer(fd, "ok\n");
		_mm_clwb(slot);
		_mm_sfence();
		if (marked)
			PMVET_OP_END(0);
		if (!late && !marked)
			answer(fd, raw ? "k" : "ok\n");
	} else if (!strncmp(line, "list", 4)) {
		char text[64];

		for (int i = 0; i < KEYS; i++)
			if (slots[i].value) {
				snprintf(text, sizeof text, "%d %lu\n", i, slots[i].value);
				say(fd, text);
			}
		say(fd, "end\n");
	} else if (!strncmp(line, "shutdown", 8)) {
		say(fd, "bye\n");
		exit(0);
	} else {
		answer(fd, "what?\n");
	}
}

static void serve(int fd)
{
	FILE *in = fdopen(fd, "r");
	char line[256], value[64];
	size_t at = 0;
	int c;

	if (greets)
		say(fd, "hello\n");
	setvbuf(in, NULL, _IONBF, 0);
	while (raw && (c = fgetc(in)) != EOF) {
		line[at++] = (char)c;
		if (c == '.' || c == '\n') {
			line[at] = '\0';
			at = 0;
			operation(fd, line);
		}
	}
	while (!raw && fgets(line, sizeof line, in)) {
		if (is_long && !strncmp(line, "put", 3) && fgets(value, sizeof value, in)) {
			line[strcspn(line, "\n")] = ' ';
			strncat(line, value, sizeof line - strlen(line) - 1);
		}
		operation(fd, line);
	}
	fclose(in);
}

static int open_socket(const char *name, struct sockaddr_un *address, socklen_t *length)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	strncpy(address->sun_path + 1, name + 1, sizeof address->sun_path - 2);
	*length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	return socket(AF_UNIX, SOCK_STREAM, 0);
}

static int ask(int argc, char **argv)
{
	struct sockaddr_un address;
	socklen_t length;
	int fd = open_socket(argv[2], &address, &length), waits = !strcmp(argv[1], "ask");
	char buffer[512];
	ssize_t got;

	if (connect(fd, (struct sockaddr *)&address, length) < 0)
		fail("connect");
	for (int i = 3; i < argc; i++) {
		int is_list = !strcmp(argv[i], "list");

		for (char *c = argv[i]; *c; c++)
			if (*c == '_')
				*c = '\n';
		say(fd, argv[i]);
		if (argv[i][strlen(argv[i]) - 1] != '.')
			say(fd, "\n");
		while (waits && (got = read(fd, buffer, sizeof buffer - 1)) > 0) {
			char *end;

			buffer[got] = '\0';
			end = is_list ? strstr(buffer, "end\n") : buffer;
			if (is_list)
				printf("%.*s", end ? (int)(end - buffer) : (int)got, buffer);
			if (end)
				break;
		}
	}
	shutdown(fd, SHUT_WR);
	while (read(fd, buffer, sizeof buffer) > 0) {
	}
	return 0;
}

static void map(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR, 0644);

	if (fd < 0 || ftruncate(fd, 4096) < 0)
		fail(path);
	slots = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (slots == MAP_FAILED)
		fail("mmap");
}

int main(int argc, char **argv)
{
	struct sockaddr_un address;
	socklen_t length;
	int fd;

	if (argc > 2 && (!strcmp(argv[1], "ask") || !strcmp(argv[1], "tell")))
		return ask(argc, argv);
	if (argc == 3 && !strcmp(argv[1], "dump")) {
		map(argv[2]);
		for (int i = 0; i < KEYS; i++)
			if (slots[i].value)
				printf("%d %lu\n", i, slots[i].value);
		return 0;
	}
	for (int i = 2; i < argc - 2; i++) {
		late |= !strcmp(argv[i], "late");
		greets |= !strcmp(argv[i], "greets");
		wordy |= !strcmp(argv[i], "wordy");
		is_long |= !strcmp(argv[i], "long");
		raw |= !strcmp(argv[i], "raw");
		mute |= !strcmp(argv[i], "mute");
		marked |= !strcmp(argv[i], "marked");
	}
	map(argv[argc - 2]);
	fd = open_socket(argv[argc - 1], &address, &length);
	if (bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 8) < 0)
		fail("listen");
	puts("ready");
	fflush(stdout);
	for (;;) {
		int connection = accept(fd, NULL, NULL);

		if (connection >= 0)
			serve(connection);
	}
}
