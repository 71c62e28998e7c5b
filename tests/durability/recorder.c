/* Records what a process does to the files below one directory: every change, every flush, in order, with its data.
 *
 * Loaded with LD_PRELOAD. `durability_begin(root, log)` starts it, `durability_note(text, length)` adds a remark.
 * The lock is held over a call and its record, so the log's order is the order of the calls. Record: one text line
 * "KIND inode number1 number2 length1 length2\n", then length1 and length2 bytes. -shm files are left out: SQLite
 * makes them anew after a power cut.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct { char *at; size_t length; int fd; off_t offset; } Mapping;
static Mapping mappings[64];

static void put(const void *data, size_t length) {
    const char *at = data;
    while (length) {
        ssize_t count = syscall(SYS_write, log_fd, at, length);
        if (count < 0) { if (errno == EINTR) continue; abort(); }
        at += count; length -= (size_t)count;
    }
}

static void record(char kind, ino_t inode, long long one, long long two,
                   const void *first, size_t first_length, const void *second, size_t second_length) {
    char line[160];
    int kept = errno;
    int length = snprintf(line, sizeof line, "%c %llu %lld %lld %zu %zu\n", kind, (unsigned long long)inode, one, two,
                          first_length, second_length);
    put(line, (size_t)length);
    if (first_length) put(first, first_length);
    if (second_length) put(second, second_length);
    errno = kept;
}

static int inside(const char *path) {
    size_t length = strlen(path);
    if (log_fd < 0 || strncmp(path, root, root_length) || (path[root_length] && path[root_length] != '/')) return 0;
    return !(length > 4 && !strcmp(path + length - 4, "-shm"));
}

/* The absolute path of `path` seen from `dir`, or "" where it is none of ours. */
static const char *whole(int dir, const char *path, char *out) {
    out[0] = 0;
    if (log_fd < 0 || !path) return out;
    if (path[0] == '/') { snprintf(out, PATH_MAX, "%s", path); }
    else {
        char base[PATH_MAX]; ssize_t length;
        if (dir == AT_FDCWD) { if (!getcwd(base, sizeof base)) return out; }
        else {
            char proc[64]; snprintf(proc, sizeof proc, "/proc/self/fd/%d", dir);
            length = readlink(proc, base, sizeof base - 1);
            if (length < 0) return out;
            base[length] = 0;
        }
        if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) { out[0] = 0; return out; }
    }
    if (!inside(out)) out[0] = 0;
    return out;
}

static int ours(int fd, struct stat *status) {
    char proc[64], path[PATH_MAX]; ssize_t length;
    if (log_fd < 0 || fd == log_fd || fd < 3) return 0;
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    length = readlink(proc, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (length > 10 && !strcmp(path + length - 10, " (deleted)")) path[length - 10] = 0;
    return inside(path) && fstat(fd, status) == 0 && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode));
}

EXPORT int durability_begin(const char *directory, const char *log) {
    log_fd = -1;
    snprintf(root, sizeof root, "%s", directory);
    root_length = strlen(root);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return log_fd;
}

EXPORT void durability_note(const char *text, size_t length) {
    pthread_mutex_lock(&lock);
    if (log_fd >= 0) record('N', 0, 0, 0, text, length, NULL, 0);
    pthread_mutex_unlock(&lock);
}

/* open ---------------------------------------------------------------------------------------------------------- */

static int opening(int dir, const char *path, int flags, mode_t mode) {
    char place[PATH_MAX]; struct stat status; int was, fd;
    if (!*whole(dir, path, place) || !(flags & (O_CREAT | O_TRUNC)))
        return (int)syscall(SYS_openat, dir, path, flags, mode);
    pthread_mutex_lock(&lock);
    was = !fstatat(AT_FDCWD, place, &status, AT_SYMLINK_NOFOLLOW);
    fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && !fstat(fd, &status)) {
        if (!was) record('C', status.st_ino, 0, 0, place, strlen(place), NULL, 0);
        else if (flags & O_TRUNC) record('T', status.st_ino, 0, 0, NULL, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE_OF(flags) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

EXPORT int open(const char *path, int flags, ...) { MODE_OF(flags) return opening(AT_FDCWD, path, flags, mode); }
EXPORT int open64(const char *path, int flags, ...) { MODE_OF(flags) return opening(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
EXPORT int openat(int dir, const char *path, int flags, ...) { MODE_OF(flags) return opening(dir, path, flags, mode); }
EXPORT int openat64(int dir, const char *path, int flags, ...) { MODE_OF(flags) return opening(dir, path, flags | O_LARGEFILE, mode); }
EXPORT int __open_2(const char *path, int flags) { return opening(AT_FDCWD, path, flags, 0); }
EXPORT int __open64_2(const char *path, int flags) { return opening(AT_FDCWD, path, flags | O_LARGEFILE, 0); }
EXPORT int __openat_2(int dir, const char *path, int flags) { return opening(dir, path, flags, 0); }
EXPORT int __openat64_2(int dir, const char *path, int flags) { return opening(dir, path, flags | O_LARGEFILE, 0); }
EXPORT int creat(const char *path, mode_t mode) { return opening(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* libstdc++ opens with fopen and then writes to the descriptor; what C code writes by stdio itself is not seen. */
static FILE *stream(FILE *(*real)(const char *, const char *), const char *path, const char *how) {
    char place[PATH_MAX]; struct stat status; int was; FILE *file;
    if (!*whole(AT_FDCWD, path, place) || how[0] == 'r') return real(path, how);
    pthread_mutex_lock(&lock);
    was = !fstatat(AT_FDCWD, place, &status, AT_SYMLINK_NOFOLLOW);
    file = real(path, how);
    if (file && !fstat(fileno(file), &status)) {
        if (!was) record('C', status.st_ino, 0, 0, place, strlen(place), NULL, 0);
        else if (how[0] == 'w') record('T', status.st_ino, 0, 0, NULL, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return file;
}
EXPORT FILE *fopen(const char *path, const char *how) { return stream(REAL(fopen), path, how); }
EXPORT FILE *fopen64(const char *path, const char *how) { return stream(REAL(fopen64), path, how); }

/* data ---------------------------------------------------------------------------------------------------------- */

EXPORT ssize_t write(int fd, const void *data, size_t length) {
    struct stat status; ssize_t count;
    if (!ours(fd, &status)) return syscall(SYS_write, fd, data, length);
    pthread_mutex_lock(&lock);
    off_t at = (fcntl(fd, F_GETFL) & O_APPEND) ? status.st_size : lseek(fd, 0, SEEK_CUR);
    count = syscall(SYS_write, fd, data, length);
    if (count > 0) record('W', status.st_ino, at, 0, data, (size_t)count, NULL, 0);
    pthread_mutex_unlock(&lock);
    return count;
}
EXPORT ssize_t writev(int fd, const struct iovec *parts, int number) {
    struct stat status; ssize_t total = 0;
    if (!ours(fd, &status)) return syscall(SYS_writev, fd, parts, number);
    for (int i = 0; i < number; i++) {
        ssize_t count = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (count < 0) return total ? total : count;
        total += count;
        if ((size_t)count < parts[i].iov_len) break;
    }
    return total;
}
EXPORT ssize_t pwrite64(int fd, const void *data, size_t length, off_t at) {
    struct stat status; ssize_t count;
    if (!ours(fd, &status)) return syscall(SYS_pwrite64, fd, data, length, at);
    pthread_mutex_lock(&lock);
    count = syscall(SYS_pwrite64, fd, data, length, at);
    if (count > 0) record('W', status.st_ino, at, 0, data, (size_t)count, NULL, 0);
    pthread_mutex_unlock(&lock);
    return count;
}
EXPORT ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }
EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t at) {
    ssize_t total = 0;
    for (int i = 0; i < number; i++) {
        ssize_t count = pwrite64(fd, parts[i].iov_base, parts[i].iov_len, at + total);
        if (count < 0) return total ? total : count;
        total += count;
        if ((size_t)count < parts[i].iov_len) break;
    }
    return total;
}
EXPORT int ftruncate64(int fd, off_t size) {
    struct stat status; int result;
    if (!ours(fd, &status)) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_ftruncate, fd, size);
    if (!result) record('T', status.st_ino, size, 0, NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int flush(int fd, long call) {
    struct stat status; int result;
    if (!ours(fd, &status)) return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    result = (int)syscall(call, fd);
    if (!result) record('F', status.st_ino, S_ISDIR(status.st_mode), 0, NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int fsync(int fd) { return flush(fd, SYS_fsync); }
EXPORT int fdatasync(int fd) { return flush(fd, SYS_fdatasync); }

static void *mapped(void *at, size_t length, int prot, int flags, int fd, off_t offset) {
    struct stat status;
    void *result = (void *)syscall(SYS_mmap, at, length, prot, flags, fd, offset);
    if (result == MAP_FAILED || fd < 0 || !(flags & MAP_SHARED) || !(prot & PROT_WRITE) || !ours(fd, &status)) return result;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++)
        if (!mappings[i].at) { mappings[i] = (Mapping){result, length, (int)syscall(SYS_dup, fd), offset}; break; }
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT void *mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset) { return mapped(at, length, prot, flags, fd, offset); }
EXPORT void *mmap64(void *at, size_t length, int prot, int flags, int fd, off_t offset) { return mapped(at, length, prot, flags, fd, offset); }

static void content_of(Mapping *mapping, int flushed) {
    struct stat status;
    if (fstat(mapping->fd, &status) || mapping->offset >= status.st_size) return;
    size_t length = mapping->length, rest = (size_t)(status.st_size - mapping->offset);
    record('W', status.st_ino, mapping->offset, 0, mapping->at, length < rest ? length : rest, NULL, 0);
    if (flushed) record('F', status.st_ino, 0, 0, NULL, 0, NULL, 0);
}
EXPORT int msync(void *at, size_t length, int flags) {
    int result;
    if (log_fd < 0) return (int)syscall(SYS_msync, at, length, flags);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_msync, at, length, flags);
    for (size_t i = 0; !result && i < sizeof mappings / sizeof *mappings; i++)
        if (mappings[i].at && (char *)at < mappings[i].at + mappings[i].length && (char *)at + length > mappings[i].at)
            content_of(&mappings[i], flags & MS_SYNC);
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int munmap(void *at, size_t length) {
    if (log_fd >= 0) {
        for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++)
            if (mappings[i].at == (char *)at) {
                pthread_mutex_lock(&lock);
                content_of(&mappings[i], 0);
                syscall(SYS_close, mappings[i].fd);
                mappings[i].at = NULL;
                pthread_mutex_unlock(&lock);
            }
    }
    return (int)syscall(SYS_munmap, at, length);
}

/* names --------------------------------------------------------------------------------------------------------- */

EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    char one[PATH_MAX], two[PATH_MAX]; int result;
    int ours_too = *whole(from_dir, from, one) || *whole(to_dir, to, two);
    whole(from_dir, from, one); whole(to_dir, to, two);
    if (!ours_too) return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    if (!result) record('R', 0, 0, 0, one, strlen(one), two, strlen(two));
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return flags ? (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags) : renameat(from_dir, from, to_dir, to);
}
EXPORT int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

EXPORT int unlinkat(int dir, const char *path, int flags) {
    char place[PATH_MAX]; int result;
    if (!*whole(dir, path, place)) return (int)syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_unlinkat, dir, path, flags);
    if (!result) record('U', 0, 0, 0, place, strlen(place), NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
EXPORT int remove(const char *path) { int result = unlink(path); return result && errno == EISDIR ? rmdir(path) : result; }

EXPORT int mkdirat(int dir, const char *path, mode_t mode) {
    char place[PATH_MAX]; struct stat status; int result;
    if (!*whole(dir, path, place)) return (int)syscall(SYS_mkdirat, dir, path, mode);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_mkdirat, dir, path, mode);
    if (!result && !stat(place, &status)) record('M', status.st_ino, 0, 0, place, strlen(place), NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

EXPORT int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char place[PATH_MAX]; struct stat status; int result;
    if (!*whole(to_dir, to, place)) return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    pthread_mutex_lock(&lock);
    result = (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    if (!result && !lstat(place, &status)) record('L', status.st_ino, 0, 0, place, strlen(place), NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
