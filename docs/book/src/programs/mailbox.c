/* mailbox POOL N: one thread posts N messages, another one reads them. */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct mailbox {
    _Alignas(64) uint64_t posted;
    _Alignas(64) uint64_t read;
};

static struct mailbox *box;
static int messages;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((target("clflushopt"))) static void persist(void *data)
{
    _mm_clflushopt(data);
    _mm_sfence();
}

static void *post(void *unused)
{
    for (int n = 0; n < messages; n++) {
        pthread_mutex_lock(&lock);
        box->posted += 1;
        pthread_mutex_unlock(&lock);
        persist(&box->posted);
    }
    return unused;
}

static void *receive(void *unused)
{
    for (int n = 0; n < messages; n++) {
        pthread_mutex_lock(&lock);
        box->read = box->posted;
        persist(&box->read);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static void recover(void)
{
    if (box->read > box->posted) {
        fprintf(stderr, "mailbox: %lu messages read, %lu posted\n", box->read, box->posted);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    int fd = argc == 3 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof *box) != 0)
        return 2;
    box = mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    messages = atoi(argv[2]);
    recover();
    pthread_create(&threads[0], NULL, post, NULL);
    pthread_create(&threads[1], NULL, receive, NULL);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return 0;
}
