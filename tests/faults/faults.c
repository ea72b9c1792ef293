// Preloaded into a test process: records what is written to files named data.mdb and when it was made durable, and fails
// the write or sync that a test chose. Control and log are functions and a file, so that one process can run many cases.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kWrite = 1, kSync = 2, kMark = 3, kTruncate = 4, kPublish = 5 };
struct Record { uint64_t op, file, offset, size; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static long fail_at = -1, seen = 0;
static int fail_errno = 0, fail_short = 0, fail_kind = 0;

static void append(struct Record record, const void *data) {
    if (log_fd < 0) return;
    pthread_mutex_lock(&lock);
    syscall(SYS_write, log_fd, &record, sizeof record);
    if (record.op == kWrite) syscall(SYS_write, log_fd, data, record.size);
    pthread_mutex_unlock(&lock);
}

// The inode when fd is a shard's data file, else 0.
static uint64_t data_file(int fd) {
    char link[64], path[4096];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 9) return 0;
    path[n] = 0;
    if (strcmp(path + n - 9, "/data.mdb") || fstat(fd, &status)) return 0;
    return status.st_ino;
}

// Counts an operation of the chosen kind; true when it is the one to fail.
static int due(int kind) {
    return fail_kind == kind && fail_at >= 0 && __atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST) == fail_at;
}

void faults_log(const char *path) { log_fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600); }
void faults_mark(uint64_t value) { append((struct Record){kMark, 0, value, 0}, 0); }
void faults_fail(int kind, long at, int error, int is_short) {
    fail_kind = kind, fail_at = at, fail_errno = error, fail_short = is_short, seen = 0;
}
long faults_seen(void) { return seen; }

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
    uint64_t file = data_file(fd);
    if (file && due(kWrite)) {
        if (!fail_short) { errno = fail_errno; return -1; }
        size /= 2;
    }
    ssize_t written = syscall(SYS_pwrite64, fd, data, size, offset);
    if (file && written > 0) {
        append((struct Record){kWrite, file, offset, written}, data);
        if (fcntl(fd, F_GETFL) & O_DSYNC) append((struct Record){kSync, file, 0, 0}, 0);
    }
    return written;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) {
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t n = pwrite64(fd, parts[i].iov_base, parts[i].iov_len, offset + total);
        if (n < 0) return total ? total : n;
        total += n;
        if ((size_t)n < parts[i].iov_len) break;
    }
    return total;
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return pwritev64(fd, parts, count, offset); }

// LMDB writes runs of pages by lseek and writev.
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!data_file(fd)) return syscall(SYS_writev, fd, parts, count);
    ssize_t total = pwritev64(fd, parts, count, lseek(fd, 0, SEEK_CUR));
    if (total > 0) lseek(fd, total, SEEK_CUR);
    return total;
}

static int synced(int fd, long number) {
    uint64_t file = data_file(fd);
    if (file && due(kSync)) { errno = fail_errno; return -1; }
    int result = syscall(number, fd);
    if (file && !result) append((struct Record){kSync, file, 0, 0}, 0);
    return result;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int ftruncate64(int fd, off_t size) {
    uint64_t file = data_file(fd);
    int result = syscall(SYS_ftruncate, fd, size);
    if (file && !result) append((struct Record){kTruncate, file, size, 0}, 0);
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

// A shard gets its name when its folder is renamed.
int rename(const char *from, const char *to) {
    int result = syscall(SYS_rename, from, to);
    char path[4096];
    struct stat status;
    snprintf(path, sizeof path, "%s/data.mdb", to);
    if (!result && !stat(path, &status)) append((struct Record){kPublish, status.st_ino, 0, 0}, 0);
    return result;
}

int posix_fallocate64(int fd, off_t offset, off_t size) {
    uint64_t file = data_file(fd);
    if (file && due(kTruncate)) return fail_errno;
    return syscall(SYS_fallocate, fd, 0, offset, size) ? errno : 0;
}
int posix_fallocate(int fd, off_t offset, off_t size) { return posix_fallocate64(fd, offset, size); }
