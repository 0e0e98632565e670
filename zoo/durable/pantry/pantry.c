/*
 * A key-value server with a thread for each connection and one lock: `put KEY VALUE`, `del KEY`, `both KEY VALUE KEY VALUE` (sets two
 * keys that are there), `get KEY` and `list`. Each request is a line; each reply is a line, but that of `list` has one for each key, and
 * `end`.
 *
 *	pantry serve POOL ADDRESS     prints `ready` when it listens
 *	pantry ask ADDRESS            sends the lines of its standard input; `2 get a` goes over connection 2, 0 to 9
 *	pantry list ADDRESS           prints all keys and values, sorted
 *
 * ADDRESS is a port of this machine, the path of a socket, or @ and a name.
 *
 * A thread holds the lock until what it did is durable, and replies then. A slot is in use as soon as its key is there, which is stored
 * last. Two keys are set by way of a log.
 */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lines.h"
#include "zoo.h"

#ifndef BUG
#define BUG 0
#endif

#define MAGIC 0x7972746e6170ull
#define POOL_SIZE (64u << 10)
#define SLOTS 64
#define CONNECTIONS 10
#define REQUESTS 256

struct slot {
	_Alignas(ZOO_LINE) uint64_t key; /* up to eight letters; 0: free */
	_Alignas(ZOO_LINE) uint64_t value;
};

struct root {
	_Alignas(ZOO_LINE) uint64_t magic;
	_Alignas(ZOO_LINE) uint64_t logged; /* entries that count */
	struct {
		_Alignas(ZOO_LINE) uint64_t slot;
		uint64_t value;
	} log[2];
	struct slot slots[SLOTS];
};

static struct root *root;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t hidden[SLOTS];                    /* for a bug: slots of keys that were deleted, but are in the pool still */
static __thread struct slot *late, *gone[SLOTS]; /* for bugs: what the thread does later */
static __thread int ngone;

/* ---- The table */

static struct slot *find(uint64_t key)
{
	for (int i = 0; i < SLOTS; i++)
		if (root->slots[i].key == key && !hidden[i])
			return &root->slots[i];
	return NULL;
}

static void set_key(struct slot *s, uint64_t key)
{
	zoo_store(&s->key, key); /* BLAME(6) */
	zoo_persist(&s->key, sizeof s->key);
}

static void set_value(struct slot *s, uint64_t value)
{
	zoo_store(&s->value, value);
	zoo_persist(&s->value, sizeof s->value);
}

static const char *insert(uint64_t key, uint64_t value)
{
	struct slot *s = find(0);

	if (!s)
		return "full";
	set_value(s, value);
	if (BUG == 1) { /* BUG(1): the key is made durable after the reply */
		zoo_store(&s->key, key); /* BLAME(1) */
		late = s;
		return "ok";
	}
	set_key(s, key); /* BLAME(6) */
	return "ok";
}

static const char *put(uint64_t key, uint64_t value)
{
	struct slot *s = find(key);

	if (!s)
		return insert(key, value);
	if (BUG == 5) { /* BUG(5): the value has a line of its own, which is not flushed */
		zoo_store(&s->value, value); /* BLAME(5) */
		zoo_persist(&s->key, sizeof s->key); /* BLAME(5) */
		return "ok";
	}
	if (BUG == 6) { /* BUG(6): a second slot has the key, until the first one is freed */
		insert(key, value); /* BLAME(6) */
		set_key(s, 0); /* BLAME(6) */
		return "ok";
	}
	set_value(s, value);
	return "ok";
}

static const char *take_out(uint64_t key)
{
	struct slot *s = find(key);

	if (!s)
		return "none";
	if (BUG == 2) { /* BUG(2): slots are freed when the connection ends */
		hidden[s - root->slots] = 1; /* BLAME(2) */
		gone[ngone++] = s; /* BLAME(2) */
		return "ok";
	}
	set_key(s, 0);
	return "ok";
}

/* Does what the log says. */
static void apply(void)
{
	for (uint64_t i = 0; i < root->logged && i < 2; i++) {
		struct slot *s = &root->slots[root->log[i].slot % SLOTS];

		zoo_store(&s->value, root->log[i].value);
		zoo_flush(&s->value, sizeof s->value);
	}
	zoo_fence();
	zoo_store(&root->logged, 0);
	zoo_persist(&root->logged, sizeof root->logged);
}

static const char *both(uint64_t one, uint64_t value, uint64_t other, uint64_t other_value)
{
	struct slot *s[2] = { find(one), find(other) };
	uint64_t values[2] = { value, other_value };

	if (!s[0] || !s[1] || s[0] == s[1])
		return "none";
	if (BUG == 3) { /* BUG(3): without the log */
		set_value(s[0], value); /* BLAME(3) */
		set_value(s[1], other_value); /* BLAME(3) */
		return "ok";
	}
	for (int i = 0; i < 2; i++) {
		zoo_store(&root->log[i].slot, (uint64_t)(s[i] - root->slots));
		zoo_store(&root->log[i].value, values[i]); /* BLAME(4) */
	}
	if (BUG != 4) /* BUG(4): the log counts before it is durable */
		zoo_persist(root->log, sizeof root->log);
	zoo_store(&root->logged, 2); /* BLAME(4) */
	zoo_persist(&root->logged, sizeof root->logged); /* BLAME(4) */
	apply(); /* BLAME(4) */
	return "ok";
}

/* ---- The server */

static void list(char *reply, size_t size)
{
	size_t used = 0;

	for (int i = 0; i < SLOTS; i++)
		if (root->slots[i].key && !hidden[i])
			used += (size_t)snprintf(reply + used, size - used, "%.8s %lu\n", (const char *)&root->slots[i].key,
					root->slots[i].value);
	snprintf(reply + used, size - used, "end");
}

static void operate(const char *line, char *reply, size_t size)
{
	const char *text = "?";
	unsigned long v, w;
	char a[9], b[9];
	struct slot *s;

	if (sscanf(line, "put %8s %lu", a, &v) == 2)
		text = put(lines_word(a), v);
	else if (sscanf(line, "del %8s", a) == 1)
		text = take_out(lines_word(a));
	else if (sscanf(line, "both %8s %lu %8s %lu", a, &v, b, &w) == 4)
		text = both(lines_word(a), v, lines_word(b), w);
	else if (sscanf(line, "get %8s", a) == 1 && (s = find(lines_word(a)))) {
		snprintf(reply, size, "%lu", s->value);
		return;
	} else if (!strcmp(line, "list")) {
		list(reply, size);
		return;
	}
	snprintf(reply, size, "%s", text);
}

/* What a thread has put off. */
static void catch_up(void)
{
	if (late)
		zoo_persist(&late->key, sizeof late->key); /* BLAME(1) */
	late = NULL;
}

static void *serve(void *arg)
{
	static __thread char reply[SLOTS * 32];
	int fd = (int)(intptr_t)arg;
	FILE *in = fdopen(fd, "r");
	char line[LINES_LENGTH];

	while (in && fgets(line, sizeof line, in)) {
		size_t length;

		line[strcspn(line, "\r\n")] = '\0';
		pthread_mutex_lock(&lock);
		operate(line, reply, sizeof reply - 1);
		pthread_mutex_unlock(&lock);
		length = strlen(reply);
		reply[length++] = '\n';
		if (write(fd, reply, length) != (ssize_t)length)
			break;
		pthread_mutex_lock(&lock);
		catch_up();
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_lock(&lock);
	while (ngone) {
		set_key(gone[--ngone], 0); /* BLAME(2) */
		hidden[gone[ngone] - root->slots] = 0;
	}
	pthread_mutex_unlock(&lock);
	if (in)
		fclose(in);
	return NULL;
}

/* ---- Addresses */

union address {
	struct sockaddr any;
	struct sockaddr_in network;
	struct sockaddr_un local;
};

static socklen_t parse(const char *text, union address *address)
{
	size_t length = strlen(text);

	memset(address, 0, sizeof *address);
	if (strspn(text, "0123456789") == length) {
		address->network.sin_family = AF_INET;
		address->network.sin_port = htons((uint16_t)atoi(text));
		address->network.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		return sizeof address->network;
	}
	if (length >= sizeof address->local.sun_path)
		zoo_fail("%s: too long", text);
	address->local.sun_family = AF_UNIX;
	memcpy(address->local.sun_path, text, length);
	if (text[0] == '@')
		address->local.sun_path[0] = '\0';
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (text[0] != '@'));
}

static void listen_on(const char *text)
{
	union address address;
	socklen_t length = parse(text, &address);
	int fd = socket(address.any.sa_family, SOCK_STREAM, 0), one = 1;

	if (address.any.sa_family == AF_UNIX && text[0] != '@')
		unlink(text);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (fd < 0 || bind(fd, &address.any, length) < 0 || listen(fd, 16) < 0)
		zoo_fail("%s: %s", text, strerror(errno));
	puts("ready");
	fflush(stdout);
	for (;;) {
		int connection = accept(fd, NULL, NULL);
		pthread_t thread;

		if (connection >= 0 && !pthread_create(&thread, NULL, serve, (void *)(intptr_t)connection))
			pthread_detach(thread);
	}
}

static FILE *connect_to(const char *text)
{
	union address address;
	socklen_t length = parse(text, &address);
	int fd = socket(address.any.sa_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, &address.any, length) < 0)
		zoo_fail("%s: %s", text, strerror(errno));
	return fdopen(fd, "r");
}

/* ---- The client */

static char requests[REQUESTS][LINES_LENGTH];
static int nrequests;

/* Tells the server that there is no more, and waits until it has noticed. */
static void disconnect(FILE *server)
{
	shutdown(fileno(server), SHUT_WR);
	while (fgetc(server) != EOF) {
	}
	fclose(server);
}

static void ask(int id, void *address)
{
	FILE *server = connect_to(address);
	char reply[LINES_LENGTH];

	for (int i = 0; i < nrequests; i++) {
		size_t length = strlen(requests[i]);

		if (requests[i][0] != '0' + id)
			continue;
		requests[i][length] = '\n';
		if (write(fileno(server), requests[i] + 2, length - 1) < 0 || !fgets(reply, sizeof reply, server))
			zoo_fail("no reply to %s", requests[i]);
	}
	disconnect(server);
}

static void print_list(const char *address)
{
	FILE *server = connect_to(address);
	char line[LINES_LENGTH];

	if (write(fileno(server), "list\n", 5) != 5)
		zoo_fail("%s: %s", address, strerror(errno));
	while (fgets(line, sizeof line, server) && strcmp(line, "end\n"))
		lines_item("%.*s", (int)strcspn(line, "\n"), line);
	lines_print();
	disconnect(server);
}

int main(int argc, char **argv)
{
	int fresh, connections = 1;
	char *line;

	if (argc == 3 && !strcmp(argv[1], "list")) {
		print_list(argv[2]);
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "ask")) {
		while (nrequests < REQUESTS && (line = lines_next())) {
			if (line[0] < '0' || line[0] > '9' || line[1] != ' ')
				zoo_fail("%s: no connection is named", line);
			if (line[0] - '0' >= connections)
				connections = line[0] - '0' + 1;
			strcpy(requests[nrequests++], line);
		}
		zoo_threads(connections, ask, argv[2]);
		return 0;
	}
	if (argc != 4 || strcmp(argv[1], "serve"))
		zoo_fail("usage: %s serve POOL ADDRESS | ask ADDRESS | list ADDRESS", argv[0]);
	root = zoo_map(argv[2], POOL_SIZE, &fresh);
	if (root->magic != MAGIC) {
		zoo_store(&root->magic, MAGIC);
		zoo_persist(&root->magic, sizeof root->magic);
	}
	if (root->logged)
		apply();
	listen_on(argv[3]);
	return 0;
}
