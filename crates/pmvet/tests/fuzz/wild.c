/* Opens a pool, then does what the first byte of its input says, none of it nice. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char what = 0;
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	volatile char *pool;

	if (argc < 2 || fd < 0 || ftruncate(fd, 4096) < 0)
		return 2;
	pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	pool[0]++;
	if (read(0, &what, 1) != 1)
		return 0;
	pool[(unsigned char)what]++;
	switch (what) {
	case 'f': /* leaves a child behind */
		if (fork() == 0)
			for (;;)
				pause();
		break;
	case 'd': /* goes on without a parent */
		if (fork() > 0)
			_exit(0);
		setsid();
		for (;;)
			pause();
	case 'h': /* never ends */
		for (;;)
			;
	case 'm': /* takes all the memory there is, within milliseconds */
		for (;;)
			*(volatile char *)malloc(1 << 24) = 1;
	case 'u':
		unlink(argv[1]);
		break;
	}
	return 0;
}
