/* PM files that grow, shrink, are zeroed, copied, synchronised, renamed and deleted. */
#include "litmus.h"
#include <sys/sendfile.h>

int
main(int argc, char **argv)
{
	int fd = open_pm(argv, "pool"), other = open_pm(argv, "pool2");
	char *p = map_fd(fd, 0, POOL);

	X("movb $1, 0x0(%[p]); movb $2, 0x1000(%[p]); movb $3, 0x3000(%[p])"); //~ store 0x0 1 01; store 0x1000 1 02; store 0x3000 1 03
	MUST(ftruncate(fd, 0x6000) == 0); //~ file-resize 0x6000
	MUST(ftruncate(fd, 0x3000) == 0); //~ file-resize 0x3000
	MUST(ftruncate(fd, 0x4000) == 0); //~ file-resize 0x4000
	MUST(p[0x3000] == 0); //~ [load 0x3000 1]
	MUST(truncate(in(argv[1], "pool"), 0x4800) == 0); //~ file-resize 0x4800
	MUST(truncate(in(argv[1], "no such file"), 0x4800) == -1);
	MUST(fallocate(fd, 0, 0x4000, 0x1000) == 0); //~ file-resize 0x5000
	MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0x1000, 0x1000) == 0); //~ file-zero 0x1000 0x1000; file-resize 0x5000
	MUST(p[0x1000] == 0); //~ [load 0x1000 1]

	/* from file to file */
	MUST(pwrite(other, "abcdefgh", 8, 0x10) == 8); //~ file-write pool2+0x10 8 6162636465666768
	off_t from = 0x10, to = 0x200;
	MUST(copy_file_range(other, &from, fd, &to, 8, 0) == 8); //~ [file-read pool2+0x10 0x8]; file-write 0x200 8 6162636465666768
	from = 0x12;
	MUST(lseek(fd, 0x300, SEEK_SET) == 0x300);
	MUST(sendfile(fd, other, &from, 4) == 4); //~ [file-read pool2+0x12 0x4]; file-write 0x300 4 63646566

	MUST(msync(p, 0x1000, MS_SYNC) == 0); //~ msync 0x0 0x1000
	MUST(msync(p + 0x1000, 0x2000, MS_SYNC) == 0); //~ msync 0x1000 0x2000
	MUST(fsync(fd) == 0); //~ fsync 0x0 0x5000
	MUST(fdatasync(fd) == 0); //~ fdatasync 0x0 0x5000
	/* whole pages, in two mappings at once; nothing that nobody waits for */
	MUST(msync(p + 0x1000, 1, MS_SYNC) == 0); //~ msync 0x1000 0x1000
	MUST(msync(p, 0x1000, MS_ASYNC) == 0);
	MUST(sync_file_range(fd, 0x1000, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) == 0); //~ sync_file_range 0x1000 0x4000
	MUST(sync_file_range(fd, 0x1000, 0x1000, SYNC_FILE_RANGE_WRITE) == 0);
	MUST(syncfs(fd) == 0); //~ fsync 0x0 0xffffffffffffffff; fsync pool2+0x0 0xffffffffffffffff

	/* A file keeps its identity under another name. */
	MUST(rename(in(argv[1], "pool2"), in(argv[1], "moved")) == 0); //~ file-rename * moved
	MUST(pwrite(other, "i", 1, 0x18) == 1);
	//~ file-write * 1 69
	/* over an existing one, which is gone then */
	int third = open(in(argv[1], "third"), O_RDWR | O_CREAT, 0600);
	MUST(write(third, "3", 1) == 1); //~ file-write third+0x0 1 33
	MUST(rename(in(argv[1], "third"), in(argv[1], "moved")) == 0); //~ file-rename * moved

	/* emptied by being opened */
	int again = open(in(argv[1], "moved"), O_RDWR | O_TRUNC); //~ file-resize * 0x0
	MUST(again >= 0);
	return 0;
}
