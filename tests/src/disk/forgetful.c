/* A disk that can lose its power and can be full, for a process that is started with this library preloaded.
 *
 * fsync and fdatasync write nothing to the real disk. For a file they copy its bytes to the image folder, for a
 * folder its list of names. So the image folder holds exactly what the process asked to be durable.
 * sync_file_range promises nothing after a loss of power, and so does nothing here.
 *
 * A write that makes a file longer fails with ENOSPC where all files together would exceed the number in the file
 * DISK_LIMIT. Without that file there is no bound.
 *
 * While the file DISK_FAULT is there every write fails with EIO.
 *
 * DISK_ROOT and DISK_IMAGE name the folders. Files are known by inode and time of birth, since an inode may be used
 * again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static off_t total;

static void give_up(const char *what) {
    fprintf(stderr, "the forgetful disk failed at %s: %s\n", what, strerror(errno));
    abort();
}

/* The path of an open file below the root; 0 where it lies elsewhere. */
static int path_of(int fd, char *path) {
    const char *root = getenv("DISK_ROOT");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (root == NULL || length < 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(root);
    return strncmp(path, root, prefix) == 0 && (path[prefix] == '/' || path[prefix] == 0);
}

/* The file of the image that stands for a path. */
static void image_of(const char *path, char *image) {
    struct statx found;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &found) != 0) give_up(path);
    unsigned long long born = found.stx_btime.tv_sec * 1000000000ULL + found.stx_btime.tv_nsec;
    if (!(found.stx_mask & STATX_BTIME)) born = 0;
    snprintf(image, PATH_MAX, "%s/%llu-%llu", getenv("DISK_IMAGE"), (unsigned long long)found.stx_ino, born);
}

static void copy_bytes(const char *path, int to) {
    static char bytes[1 << 16];
    int from = open(path, O_RDONLY);
    if (from < 0) give_up(path);
    ssize_t read_now;
    while ((read_now = read(from, bytes, sizeof bytes)) > 0)
        if (write(to, bytes, read_now) != read_now) give_up("copying");
    close(from);
}

static void list_names(const char *path, int to) {
    DIR *folder = opendir(path);
    if (folder == NULL) give_up(path);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char inner[PATH_MAX], image[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (access(inner, F_OK) != 0) continue; /* removed meanwhile */
        image_of(inner, image);
        dprintf(to, "%s\t%s\n", strrchr(image, '/') + 1, entry->d_name);
    }
    closedir(folder);
}

/* What is synced now is durable now: as a whole, also if the process is killed meanwhile. */
static void keep(const char *path) {
    char image[PATH_MAX], unfinished[PATH_MAX + 16];
    struct stat found;
    pthread_mutex_lock(&one);
    if (stat(path, &found) == 0) { /* else it was removed while open */
        image_of(path, image);
        snprintf(unfinished, sizeof unfinished, "%s.unfinished", image);
        int to = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (to < 0) give_up(unfinished);
        if (S_ISDIR(found.st_mode)) list_names(path, to);
        else copy_bytes(path, to);
        close(to);
        if (rename(unfinished, image) != 0) give_up(image);
    }
    pthread_mutex_unlock(&one);
}

static int keep_one(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)found, (void)kind, (void)place;
    keep(path);
    return 0;
}

/* The first process on a disk finds everything durable that is there. The root comes last: without its image the
 * process was killed in here. */
__attribute__((constructor)) static void begin(void) {
    char image[PATH_MAX];
    if (getenv("DISK_ROOT") == NULL) return;
    image_of(getenv("DISK_ROOT"), image);
    if (access(image, F_OK) != 0) nftw(getenv("DISK_ROOT"), keep_one, 16, FTW_PHYS | FTW_DEPTH);
}

static int synced(int fd, const char *name) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
    keep(path);
    return 0;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
int sync_file_range(int fd, off64_t from, off64_t length, unsigned int how) {
    (void)fd, (void)from, (void)length, (void)how;
    return 0;
}

static int add_size(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)path, (void)place;
    if (kind == FTW_F) total += found->st_size;
    return 0;
}

/* How many bytes all files together may still grow by. */
static long long room(void) {
    FILE *file = getenv("DISK_LIMIT") ? fopen(getenv("DISK_LIMIT"), "r") : NULL;
    if (file == NULL) return LLONG_MAX;
    long long limit = 0;
    if (fscanf(file, "%lld", &limit) != 1) limit = LLONG_MAX;
    fclose(file);
    pthread_mutex_lock(&one);
    total = 0;
    nftw(getenv("DISK_ROOT"), add_size, 16, FTW_PHYS);
    limit = limit > total ? limit - total : 0;
    pthread_mutex_unlock(&one);
    return limit;
}

/* Whether a write up to this length of a file has room. */
static int has_room(int fd, off_t upto) {
    char path[PATH_MAX];
    struct stat found;
    if (!path_of(fd, path) || fstat(fd, &found) != 0 || upto <= found.st_size) return 1;
    return upto - found.st_size <= room();
}

int statvfs(const char *path, struct statvfs *found) {
    int result = ((int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs"))(path, found);
    const char *root = getenv("DISK_ROOT");
    if (result == 0 && root != NULL && strncmp(path, root, strlen(root)) == 0) {
        long long left = room() / found->f_frsize;
        if (left < (long long)found->f_bavail) found->f_bavail = found->f_bfree = left;
    }
    return result;
}
int statvfs64(const char *path, struct statvfs64 *found) {
    return statvfs(path, (struct statvfs *)found); /* the same where a pointer has 64 bits */
}

typedef ssize_t (*pwrite_function)(int, const void *, size_t, off_t);
static ssize_t write_at(const char *name, int fd, const void *bytes, size_t length, off_t offset) {
    char path[PATH_MAX];
    const char *fault = getenv("DISK_FAULT");
    if (fault != NULL && access(fault, F_OK) == 0 && path_of(fd, path)) return errno = EIO, -1;
    if (!has_room(fd, offset + (off_t)length)) return errno = ENOSPC, -1;
    return ((pwrite_function)dlsym(RTLD_NEXT, name))(fd, bytes, length, offset);
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return write_at("pwrite", fd, bytes, length, offset);
}
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    return write_at("pwrite64", fd, bytes, length, offset);
}
ssize_t write(int fd, const void *bytes, size_t length) {
    off_t offset = lseek(fd, 0, SEEK_CUR);
    if (offset >= 0 && !has_room(fd, offset + (off_t)length)) return errno = ENOSPC, -1;
    return ((ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, bytes, length);
}
