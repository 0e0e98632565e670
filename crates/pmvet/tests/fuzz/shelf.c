/* A shelf of numbers in PM with two bugs: it is marked as made before it is, and it does not know when it is full. */
#include <fcntl.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x5e1f5e1fUL
#define ROOM 12

struct shelf {
	unsigned long magic;
	char gap1[56];
	unsigned long shelf; /* where the numbers are */
	char gap2[56];
	unsigned long count;
};

static void persist(const void *at)
{
	_mm_clflush(at);
	_mm_sfence();
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	struct stat found;
	if (fd < 0 || fstat(fd, &found) != 0 || (found.st_size < 65536 && ftruncate(fd, 65536) != 0))
		return 2;
	char *base = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return 2;
	struct shelf *shelf = (struct shelf *)base;
	if (shelf->magic != MAGIC) {
		shelf->magic = MAGIC;
		persist(&shelf->magic);
		shelf->shelf = 4096;
		persist(&shelf->shelf);
	}
	long *numbers = shelf->shelf ? (long *)(base + shelf->shelf) : NULL;
	FILE *in = argc > 2 ? fopen(argv[2], "r") : stdin;
	char line[64];
	while (in && fgets(line, sizeof(line), in)) {
		long number;
		if (sscanf(line, "add %ld", &number) == 1) {
			numbers[shelf->count] = number;
			persist(&numbers[shelf->count]);
			shelf->count++;
			persist(&shelf->count);
			if (shelf->count > ROOM)
				abort();
		} else if (sscanf(line, "del %ld", &number) == 1 && shelf->count > 0) {
			shelf->count--;
			persist(&shelf->count);
		}
	}
	return 0;
}
