/* A counter in PM that fails by itself on some inputs, and on others asks for what a sandbox cannot give. */
#include <fcntl.h>
#include <immintrin.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	if (fd < 0 || ftruncate(fd, 4096) != 0)
		return 2;
	long *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (count == MAP_FAILED)
		return 2;
	int status = 0;
	char line[64];
	while (fgets(line, sizeof(line), stdin)) {
		if (strncmp(line, "add", 3) == 0) {
			++*count;
			_mm_clflush(count);
			_mm_sfence();
		} else if (strncmp(line, "fail", 4) == 0) {
			status = 7;
		} else if (strncmp(line, "ask", 3) == 0) {
			/* Refused before anybody looks whether there is such a place. */
			umount2("/no/such/place", 0);
		}
	}
	return status;
}
