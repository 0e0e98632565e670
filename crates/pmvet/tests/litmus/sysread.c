/* System calls that write into PM for the program. */
#include "litmus.h"
#include <sys/socket.h>
#include <sys/uio.h>

int
main(int argc, char **argv)
{
	char *p = pool(argv, "pool");
	char elsewhere[2];
	int fds[2];

	MUST(pipe(fds) == 0 && write(fds[1], "hello world", 11) == 11);
	MUST(read(fds[0], p + 0x40, 5) == 5); //~ kernel-store 0x40 5 68656c6c6f
	/* fewer bytes than asked for */
	MUST(read(fds[0], p + 0x80, 100) == 6); //~ kernel-store 0x80 6 20776f726c64
	/* a failing one changes nothing */
	MUST(read(-1, p, 100) == -1);

	int fd = open(in(argv[2], "input"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	MUST(fd >= 0 && write(fd, "0123456789abcdef", 16) == 16);
	MUST(pread(fd, p + 0xc0, 4, 10) == 4); //~ kernel-store 0xc0 4 61626364
	/* at the end of the file there is nothing */
	MUST(pread(fd, p + 0xc0, 4, 16) == 0);

	/* a vector, in part volatile, the last part not reached */
	MUST(lseek(fd, 0, SEEK_SET) == 0);
	struct iovec vector[] = {{p + 0x100, 3}, {elsewhere, 2}, {p + 0x180, 4}, {p + 0x200, 100}};
	MUST(readv(fd, vector, 3) == 9); //~ kernel-store 0x100 3 303132; kernel-store 0x180 4 35363738
	MUST(preadv(fd, vector, 4, 12) == 4); //~ kernel-store 0x100 3 636465
	close(fd);

	int pair[2];
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	MUST(send(pair[0], "abcdef", 6, 0) == 6);
	MUST(recv(pair[1], p + 0x240, 2, 0) == 2); //~ kernel-store 0x240 2 6162
	MUST(recvfrom(pair[1], p + 0x250, 2, 0, NULL, NULL) == 2); //~ kernel-store 0x250 2 6364
	struct iovec one = {p + 0x260, 10};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
	MUST(recvmsg(pair[1], &message, 0) == 2); //~ kernel-store 0x260 2 6566

	/* across pages */
	char page[6000];
	memset(page, 0x77, sizeof page);
	MUST(write(fds[1], page, 6000) == 6000);
	MUST(read(fds[0], p + 0x1000, 6000) == 6000); //~ kernel-store 0x1000 4096 77*4096; kernel-store 0x2000 1904 77*1904

	/* results of other calls */
	MUST(pipe((int *)(p + 0x300)) == 0);
	//~ kernel-store 0x300 8 *
	struct stat found;
	MUST(syscall(5 /* fstat */, 0, &found) == 0);
	MUST(syscall(5, 0, p + 0x400) == 0); //~ kernel-store 0x400 144 *
	return 0;
}
