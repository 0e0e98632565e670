/* A threaded server on 127.0.0.1 and its clients under load, in two processes. Each request is answered by a checksum. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 8, REQUESTS = 150 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long served;
static unsigned port;

static int exactly(int fd, void *data, size_t size, int writing) {
    for (size_t done = 0; done < size;) {
        char *at = (char *)data + done;
        ssize_t n = writing ? write(fd, at, size - done) : read(fd, at, size - done);
        if (n <= 0) return 0;
        done += (size_t)n;
    }
    return 1;
}

static unsigned checksum(const char *data, unsigned size) {
    unsigned sum = 1;
    for (unsigned i = 0; i < size; i++) sum = sum * 131 + (unsigned char)data[i];
    return sum;
}

static void *serve(void *argument) {
    int connection = (int)(long)argument;
    unsigned size;
    static __thread char data[65536];
    while (exactly(connection, &size, sizeof size, 0) && size <= sizeof data && exactly(connection, data, size, 0)) {
        unsigned sum = checksum(data, size);
        pthread_mutex_lock(&lock);
        served++;
        pthread_mutex_unlock(&lock);
        if (!exactly(connection, &sum, sizeof sum, 1)) break;
    }
    close(connection);
    return NULL;
}

static void *request(void *argument) {
    long me = (long)argument;
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = (in_port_t)port};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(connection, (struct sockaddr *)&to, sizeof to)) return (void *)-1000;
    int at_once = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
    long good = 0;
    char *data = malloc(65536);
    for (unsigned i = 0; i < REQUESTS; i++) {
        unsigned size = (unsigned)(me * 977 + i * 131) % 20000, sum = 0;
        for (unsigned j = 0; j < size; j++) data[j] = (char)(j * i + me);
        if (!exactly(connection, &size, sizeof size, 1) || !exactly(connection, data, size, 1)) break;
        if (!exactly(connection, &sum, sizeof sum, 0)) break;
        good += sum == checksum(data, size);
    }
    close(connection);
    free(data);
    return (void *)good;
}

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here = {.sin_family = AF_INET};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    if (bind(listener, (struct sockaddr *)&here, size) || listen(listener, 64)) return 1;
    getsockname(listener, (struct sockaddr *)&here, &size);
    port = here.sin_port;
    pid_t clients = fork();
    if (clients == 0) {
        pthread_t threads[CLIENTS];
        long good = 0;
        for (long i = 0; i < CLIENTS; i++) pthread_create(&threads[i], NULL, request, (void *)i);
        for (int i = 0; i < CLIENTS; i++) {
            void *answer;
            pthread_join(threads[i], &answer);
            good += (long)answer;
        }
        _exit(good == CLIENTS * REQUESTS ? 0 : 1);
    }
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        int connection = accept(listener, NULL, NULL);
        pthread_create(&threads[i], NULL, serve, (void *)(long)connection);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    int status;
    waitpid(clients, &status, 0);
    printf("served %ld, clients %s\n", served, status == 0 ? "content" : "not content");
    return 0;
}
