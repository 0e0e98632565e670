/* A PM file changed through its descriptor. */
#include "litmus.h"
#include <sys/uio.h>

int
main(int argc, char **argv)
{
	int fd = open_pm(argv, "pool");
	char *p = map_fd(fd, 0, POOL);

	X("movb $1, 0x0(%[p])"); //~ store 0x0 1 01
	MUST(write(fd, "abc", 3) == 3); //~ file-write 0x0 3 616263
	MUST(write(fd, "d", 1) == 1); //~ file-write 0x3 1 64
	MUST(pwrite(fd, "xy", 2, 0x100) == 2); //~ file-write 0x100 2 7879
	struct iovec vector[] = {{"12", 2}, {"345", 3}};
	MUST(writev(fd, vector, 2) == 5); //~ file-write 0x4 5 3132333435
	MUST(pwritev(fd, vector, 2, 0x200) == 5); //~ file-write 0x200 5 3132333435
	MUST(lseek(fd, 0x300, SEEK_SET) == 0x300 && write(fd, "q", 1) == 1); //~ file-write 0x300 1 71
	MUST(pwrite(fd, "xy", 0, 0x100) == 0);

	/* from one PM file to the other, and to itself */
	int other = open_pm(argv, "pool2");
	MUST(write(other, p, 4) == 4); //~ [file-read 0x0 0x4]; file-write pool2+0x0 4 61626364
	MUST(pwrite(fd, p + 4, 4, 0x310) == 4); //~ [file-read 0x4 0x4]; file-write 0x310 4 31323334

	/* more than one event can carry */
	char *many = malloc(10000);
	memset(many, 0x42, 10000);
	MUST(pwrite(fd, many, 10000, 0x1000) == 10000); //~ file-write 0x1000 4096 42*4096; file-write 0x2000 4096 42*4096; file-write 0x3000 1808 42*1808

	/* at the end, wherever that is */
	int append = open(in(argv[1], "pool"), O_WRONLY | O_APPEND);
	MUST(append >= 0);
	MUST(write(append, "end", 3) == 3); //~ file-write 0x4000 3 656e64
	MUST(pwrite(append, "e", 1, 0) == 1); //~ file-write 0x4003 1 65

	/* beyond the end: the hole before it is zero */
	MUST(pwrite(fd, "z", 1, 0x5000) == 1); //~ file-write 0x5000 1 7a
	/* a descriptor that is not PM, and one that is not open for writing */
	int elsewhere = open(in(argv[2], "output"), O_RDWR | O_CREAT, 0600);
	MUST(write(elsewhere, "abc", 3) == 3);
	int read_only = open(in(argv[1], "pool"), O_RDONLY);
	MUST(write(read_only, "abc", 3) == -1);
	X("movb $2, 0x0(%[p])"); //~ store 0x0 1 02
	return 0;
}
