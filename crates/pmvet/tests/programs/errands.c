/*
 * Threads that run errands from standard input, a line each: `THREAD OPERATION`. Operation 1 stores a word and persists it at its
 * leisure; operation 2 copies the word, persists the copy at once, and so relies on the word. As long as one thread does both, all is well:
 * it persists the word before it copies it. A copy without its word is what a restart refuses. With a second argument there is a
 * lock, and the word is persisted under it.
 */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 2, MOST = 256 };

static struct {
	_Alignas(64) volatile uint64_t word;
	_Alignas(64) volatile uint64_t copy;
	_Alignas(64) volatile uint64_t notes[64];
} *pm;

static int errands[THREADS][MOST], count[THREADS], locked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void persist(volatile void *p)
{
	_mm_clflush((void *)p);
	_mm_sfence();
}

static void *run(void *arg)
{
	long id = (long)arg;
	int late = 0;

	for (int i = 0; i < count[id]; i++) {
		if (locked)
			pthread_mutex_lock(&lock);
		if (errands[id][i] == 1) {
			pm->word = pm->word + 1;
			late = 1;
			if (locked)
				persist(&pm->word);
			/* Something else first. */
			pm->notes[id * 8] = i;
			persist(&pm->notes[id * 8]);
		} else {
			if (late)
				persist(&pm->word);
			late = 0;
			if (pm->word > pm->copy) {
				pm->copy = pm->word;
				persist(&pm->copy);
			}
		}
		if (locked)
			pthread_mutex_unlock(&lock);
	}
	if (late)
		persist(&pm->word);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	int id, what, fd = open(argc > 1 ? argv[1] : "", O_CREAT | O_RDWR, 0644);

	locked = argc > 2;
	if (fd < 0 || ftruncate(fd, sizeof *pm) < 0)
		return 2;
	pm = mmap(NULL, sizeof *pm, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (pm == MAP_FAILED)
		return 2;
	if (pm->copy > pm->word) {
		fprintf(stderr, "the copy is %lu, the word only %lu\n", pm->copy, pm->word);
		return 1;
	}
	while (scanf("%d %d", &id, &what) == 2)
		if (id >= 0 && id < THREADS && count[id] < MOST)
			errands[id][count[id]++] = what;
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, run, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
