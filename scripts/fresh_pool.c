/*
 * Linked into the program that AFL++ runs: every execution starts from a copy of the same pool, as those of `pmvet
 * fuzz` do. The copy is made in the child that AFL++ forks, so after AFL++'s own constructor. Holes stay holes.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((constructor(65535))) static void fresh_pool(void)
{
	static char buffer[1 << 16];
	const char *from = getenv("FRESH_FROM"), *to = getenv("FRESH_TO");
	struct stat st;
	off_t at = 0;

	if (!from || !to)
		return;
	int in = open(from, O_RDONLY);

	unlink(to);
	int out = open(to, O_RDWR | O_CREAT | O_EXCL, 0644);

	if (in < 0 || out < 0 || fstat(in, &st) < 0 || ftruncate(out, st.st_size) < 0)
		_exit(70);
	while ((at = lseek(in, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(in, at, SEEK_HOLE);

		while (at < end) {
			size_t want = (size_t)(end - at) < sizeof(buffer) ? (size_t)(end - at) : sizeof(buffer);
			ssize_t got = pread(in, buffer, want, at);

			if (got <= 0 || pwrite(out, buffer, (size_t)got, at) != got)
				_exit(70);
			at += got;
		}
	}
	close(in);
	close(out);
}
