/* A disk that takes its time, for chaos (slow.rs): loaded before everything else, this puts a delay in front of the calls
 * that wait for the disk. How long it is, in milliseconds, stands in the file that LOCKSTEP_LAB_SLOW names; no file, no
 * delay. The file is read again while it lasts, so that whoever removes it ends the delays of all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char *file;
static int (*next_fsync)(int);
static int (*next_fdatasync)(int);
static int (*next_msync)(void *, size_t, int);

__attribute__((constructor)) static void find(void) {
    file = getenv("LOCKSTEP_LAB_SLOW");
    next_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    next_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    next_msync = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
}

static long delay(void) {
    char text[24];
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    return atol(text);
}

/* Before the disk is asked, not after: what is not acknowledged must not be safe already. */
static void wait_for_disk(void) {
    const struct timespec slice = {0, 5 * 1000 * 1000};
    int before = errno;
    for (long waited = 0; waited < delay(); waited += 5) nanosleep(&slice, NULL);
    errno = before;
}

int fsync(int fd) {
    wait_for_disk();
    return next_fsync(fd);
}

int fdatasync(int fd) {
    wait_for_disk();
    return next_fdatasync(fd);
}

int msync(void *start, size_t length, int flags) {
    if (flags & MS_SYNC) wait_for_disk();
    return next_msync(start, length, flags);
}
