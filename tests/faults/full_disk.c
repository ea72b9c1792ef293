// Preloaded into a test process: a disk that is full below one folder from a chosen operation on. Operations are those
// that a full disk can refuse: writing, syncing, and making, naming or truncating a file or folder.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char folder[4096];
static long full_from = -1, seen = 0;

// From the operation number `from` on, those below `path` fail; "" ends it.
void full_disk(const char *path, long from) {
    snprintf(folder, sizeof folder, "%s", path);
    full_from = from, seen = 0;
}
long full_disk_seen(void) { return seen; }

static int refused(const char *path) {
    if (!folder[0] || strncmp(path, folder, strlen(folder))) return 0;
    if (__atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST) < full_from) return 0;
    errno = ENOSPC;
    return 1;
}

static int refused_file(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return refused(path);
}

ssize_t write(int fd, const void *data, size_t size) {
    return refused_file(fd) ? -1 : syscall(SYS_write, fd, data, size);
}
int fsync(int fd) { return refused_file(fd) ? -1 : syscall(SYS_fsync, fd); }
int mkdir(const char *path, mode_t mode) { return refused(path) ? -1 : syscall(SYS_mkdir, path, mode); }
int rename(const char *from, const char *to) { return refused(to) ? -1 : syscall(SYS_rename, from, to); }
int link(const char *from, const char *to) { return refused(to) ? -1 : syscall(SYS_link, from, to); }

static int open_at(int at, const char *path, int flags, int mode) {
    return (flags & (O_CREAT | O_TRUNC)) && refused(path) ? -1 : syscall(SYS_openat, at, path, flags, mode);
}
#define MODE(last) va_list rest; va_start(rest, last); int mode = va_arg(rest, int); va_end(rest)
int open(const char *path, int flags, ...) { MODE(flags); return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags); return open_at(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags); return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags); return open_at(at, path, flags, mode); }
