/* desk POOL PORT: sells a ticket to whoever connects, and answers with its number. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct desk {
    _Alignas(64) uint64_t sold;
    struct ticket {
        _Alignas(64) uint64_t number;
    } tickets[100];
};

__attribute__((target("clflushopt"))) static void persist(void *data)
{
    _mm_clflushopt(data);
    _mm_sfence();
}

static uint64_t sell(struct desk *d)
{
    struct ticket *t = &d->tickets[d->sold];
    d->sold += 1;
    persist(&d->sold);
    t->number = d->sold;
    persist(t);
    return t->number;
}

int main(int argc, char **argv)
{
    int fd = argc == 3 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof(struct desk)) != 0)
        return 2;
    struct desk *d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (uint64_t i = 0; i < d->sold; i++)
        if (d->tickets[i].number != i + 1) {
            fprintf(stderr, "desk: ticket %lu was sold and is not there\n", i + 1);
            exit(1);
        }
    int on = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {AF_INET, htons(atoi(argv[2])), {htonl(INADDR_LOOPBACK)}, {0}};
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(server, (struct sockaddr *)&address, sizeof address) != 0 || listen(server, 8) != 0)
        return 2;
    printf("desk: open\n");
    fflush(stdout);
    for (;;) {
        int client = accept(server, NULL, NULL);
        if (client >= 0)
            dprintf(client, "%lu\n", sell(d));
        close(client);
    }
}
