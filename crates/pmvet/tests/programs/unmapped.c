/* Recoveries that look at the pool without loads from a shared mapping: unmapped POOL HOW. They fail if the word in the third line is set
 * and the one in the second line is not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#define BYTES 256

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "";
	uint64_t words[BYTES / 8] = { 0 };
	struct iovec parts[2] = { { words, 72 }, { (char *)words + 72, BYTES - 72 } };
	int fd = open(argv[1], O_RDWR), ends[2];

	if (fd < 0 || pipe(ends))
		return 2;
	if (!strcmp(how, "read")) {
		if (read(fd, words, BYTES) != BYTES)
			return 2;
	} else if (!strcmp(how, "pread")) {
		if (pread(fd, &words[8], 8, 64) != 8 || pread(fd, &words[16], 8, 128) != 8)
			return 2;
	} else if (!strcmp(how, "preadv")) {
		if (preadv(fd, parts, 2, 0) != BYTES)
			return 2;
	} else if (!strcmp(how, "private")) {
		memcpy(words, mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0), BYTES);
	} else if (!strcmp(how, "sendfile")) {
		if (sendfile(ends[1], fd, NULL, BYTES) != BYTES || read(ends[0], words, BYTES) != BYTES)
			return 2;
	} else if (!strcmp(how, "write")) {
		char *pm = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

		if (write(ends[1], pm, BYTES) != BYTES || read(ends[0], words, BYTES) != BYTES)
			return 2;
	}
	return words[16] && !words[8];
}
