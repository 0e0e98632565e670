/* Counts in PM how many bytes it has read, and never fails. */
#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = argc < 2 ? -1 : open(argv[1], O_RDWR | O_CREAT, 0644);
	if (fd < 0 || ftruncate(fd, 4096) != 0)
		return 2;
	unsigned long *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (count == MAP_FAILED)
		return 2;
	for (char byte; read(0, &byte, 1) == 1; ) {
		++*count;
		_mm_clflush(count);
		_mm_sfence();
	}
	return 0;
}
