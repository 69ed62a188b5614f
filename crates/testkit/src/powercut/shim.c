/*
 * A disk that forgets: a library for LD_PRELOAD that keeps, in a shadow directory, what would
 * be left of every regular file below a watched directory if the power failed right now.
 *
 * Writes go to the real file and their ranges are remembered as dirty; fsync and fdatasync copy
 * the dirty ranges into the shadow file. The process can then be killed at any moment. The model,
 * its knobs and its limits are described in powercut.rs, which compiles and configures this file.
 *
 * System calls are made with syscall(2): these functions replace the libc ones, so calling those
 * would come back here. Nothing is allocated: the constants below bound every table. What does
 * not fit, or what the model cannot represent, aborts the process loudly.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "offsets are 64 bits: build for a 64-bit Linux");

enum { FILES_MAX = 256, RANGES_MAX = 4096, COPY_BYTES = 65536, SECTOR_BYTES = 512 };

struct range {
    off_t start, end;
};

/* One watched inode. Keyed by inode and not by descriptor, because a sync through any descriptor
 * covers what was written through all of them. */
struct file {
    int used;
    dev_t dev;
    ino_t ino;
    /* Our own descriptor: it can be read even if the program opened the file write-only, and as
     * long as it is open the inode number cannot be given to another file. It is closed only when
     * the file is gone, since closing any descriptor of a file drops its POSIX locks. */
    int real_fd;
    int shadow_fd; /* -1 until something became durable */
    off_t cut;     /* the smallest size the file was truncated to since the last sync, or -1 */
    size_t ranges_len;
    struct range ranges[RANGES_MAX]; /* dirty bytes: sorted, disjoint, not touching */
    char shadow_path[PATH_MAX];
};

static struct file files[FILES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything but the settings */

static struct {
    int on;
    char watch[PATH_MAX], shadow[PATH_MAX], inject_file[PATH_MAX];
    unsigned long early_percent, fail_percent, ambiguous_percent, lose;
    unsigned long inject_after, inject_max, sync_delay_micros, full;
} set;

static struct {
    unsigned long writes, early, syncs, failed, ambiguous;
} count;

static uint64_t random_state;
static int stats_fd = -1;

static void die(const char *what, const char *path) {
    char line[PATH_MAX + 128];
    int n = snprintf(line, sizeof line, "powercut shim: %s: %s (errno %d)\n", what, path, errno);
    syscall(SYS_write, 2, line, n);
    abort();
}

/* ---- settings, chance and counters ---- */

static unsigned long number(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

static void publish(void) {
    char line[160];
    int n = snprintf(line, sizeof line,
                     "writes %020lu early %020lu syncs %020lu failed %020lu ambiguous %020lu\n",
                     count.writes, count.early, count.syncs, count.failed, count.ambiguous);
    if (syscall(SYS_pwrite64, stats_fd, line, n, 0) != n) die("cannot write", "the counters");
}

static void read_settings(void) {
    const char *watch = getenv("SEMEL_POWERCUT_WATCH");
    const char *shadow = getenv("SEMEL_POWERCUT_SHADOW");
    const char *inject_file = getenv("SEMEL_POWERCUT_INJECT_FILE");
    char path[PATH_MAX + 32];
    if (!watch || !shadow) return;
    if (!realpath(watch, set.watch)) die("no such directory", watch);
    if (!realpath(shadow, set.shadow)) die("no such directory", shadow);
    if (inject_file) snprintf(set.inject_file, sizeof set.inject_file, "%s", inject_file);
    set.early_percent = number("SEMEL_POWERCUT_EARLY", 0);
    set.fail_percent = number("SEMEL_POWERCUT_FAIL_SYNC", 0);
    set.ambiguous_percent = number("SEMEL_POWERCUT_AMBIGUOUS_SYNC", 0);
    set.lose = number("SEMEL_POWERCUT_LOSE", 1);
    set.inject_after = number("SEMEL_POWERCUT_INJECT_AFTER", 0);
    set.inject_max = number("SEMEL_POWERCUT_INJECT_MAX", ULONG_MAX);
    set.sync_delay_micros = number("SEMEL_POWERCUT_SYNC_DELAY_MICROS", 0);
    set.full = number("SEMEL_POWERCUT_FULL", 0);
    random_state = number("SEMEL_POWERCUT_SEED", 0);
    snprintf(path, sizeof path, "%s/.powercut-stats", set.shadow);
    stats_fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (stats_fd < 0) die("cannot create", path);
    publish();
    set.on = 1;
}

static int on(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_settings);
    return set.on;
}

/* splitmix64: one seed, one sequence. */
static uint64_t chance(uint64_t below) {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static int switched_on(void) {
    return !set.inject_file[0] || syscall(SYS_faccessat, AT_FDCWD, set.inject_file, F_OK) == 0;
}

static int armed(void) {
    return count.syncs > set.inject_after && count.failed + count.ambiguous < set.inject_max
           && switched_on();
}

/* ---- names ---- */

/* The shadow's name for an absolute path, or 0 if the path is none of our business. */
static int shadow_of(const char *path, char *out) {
    size_t root = strlen(set.watch), len = strlen(path);
    if (strncmp(path, set.watch, root) != 0 || path[root] != '/') return 0;
    /* SQLite's wal-index is shared memory: written through a mapping, rebuilt after a crash. */
    if (len >= 4 && strcmp(path + len - 4, "-shm") == 0) return 0;
    if (snprintf(out, PATH_MAX, "%s%s", set.shadow, path + root) >= PATH_MAX)
        die("the path is too long", path);
    return 1;
}

static int path_of_fd(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n < 0 ? 0 : n] = 0;
    return n > 0;
}

/* As shadow_of, for the last component of a path as the *at calls take it. The component itself
 * is not followed if it is a symbolic link, since unlink and rename do not either. */
static int shadow_at(int dir, const char *path, char *out) {
    char full[2 * PATH_MAX + 2], parent[PATH_MAX], base[PATH_MAX];
    if (path[0] == '/' || dir == AT_FDCWD)
        snprintf(full, sizeof full, "%s%s", path[0] == '/' ? "" : "./", path);
    else if (path_of_fd(dir, base))
        snprintf(full, sizeof full, "%s/%s", base, path);
    else
        return 0;
    char *slash = strrchr(full, '/');
    snprintf(base, sizeof base, "%s", slash + 1);
    *(slash == full ? slash + 1 : slash) = 0;
    if (!realpath(full, parent)) return 0;
    if (snprintf(full, sizeof full, "%s/%s", parent, base) >= PATH_MAX) return 0;
    return shadow_of(full, out);
}

/* ---- one file ---- */

static struct file *find(const struct stat *st) {
    for (struct file *f = files; f < files + FILES_MAX; f++)
        if (f->used && f->ino == st->st_ino && f->dev == st->st_dev) return f;
    return NULL;
}

static void forget(struct file *f) {
    if (!f) return;
    syscall(SYS_close, f->real_fd);
    if (f->shadow_fd >= 0) syscall(SYS_close, f->shadow_fd);
    f->used = 0;
}

static void mark(struct file *f, off_t start, off_t end) {
    struct range *r = f->ranges;
    size_t i = 0;
    if (start >= end) return;
    while (i < f->ranges_len && r[i].end < start) i++;
    size_t j = i;
    for (; j < f->ranges_len && r[j].start <= end; j++) {
        if (r[j].start < start) start = r[j].start;
        if (r[j].end > end) end = r[j].end;
    }
    if (j == i && f->ranges_len == RANGES_MAX) {
        /* No room: swallow the gap to a neighbour. Its bytes are clean, thus already equal. */
        if (i < f->ranges_len) r[i].start = start;
        else r[i - 1].end = end;
        return;
    }
    memmove(r + i + 1, r + j, (f->ranges_len - j) * sizeof *r);
    f->ranges_len = f->ranges_len - j + i + 1;
    r[i] = (struct range){start, end};
}

static void mark_cut(struct file *f, off_t size) {
    if (f->cut < 0 || size < f->cut) f->cut = size;
}

static void open_shadow(struct file *f) {
    if (f->shadow_fd >= 0) return;
    for (char *p = f->shadow_path + strlen(set.shadow) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        syscall(SYS_mkdirat, AT_FDCWD, f->shadow_path, 0755);
        *p = '/';
    }
    int flags = O_RDWR | O_CREAT | O_CLOEXEC;
    f->shadow_fd = syscall(SYS_openat, AT_FDCWD, f->shadow_path, flags, 0644);
    if (f->shadow_fd < 0) die("cannot create", f->shadow_path);
}

static void harden_cut(struct file *f) {
    struct stat st;
    if (f->cut >= 0 && fstat(f->shadow_fd, &st) == 0 && st.st_size > f->cut
        && syscall(SYS_ftruncate, f->shadow_fd, f->cut) != 0)
        die("cannot truncate", f->shadow_path);
    f->cut = -1;
}

static void harden_range(struct file *f, off_t start, off_t end) {
    static char buffer[COPY_BYTES];
    while (start < end) {
        size_t want = end - start < COPY_BYTES ? (size_t)(end - start) : COPY_BYTES;
        ssize_t n = syscall(SYS_pread64, f->real_fd, buffer, want, start);
        if (n == 0) return; /* the file was truncated after this write */
        if (n < 0 || syscall(SYS_pwrite64, f->shadow_fd, buffer, n, start) != n)
            die("cannot copy", f->shadow_path);
        start += n;
    }
}

/* Makes everything durable. A kill in the middle leaves part of it, as a power cut would. */
static void harden(struct file *f) {
    struct stat st;
    open_shadow(f);
    harden_cut(f);
    for (size_t i = 0; i < f->ranges_len; i++)
        harden_range(f, f->ranges[i].start, f->ranges[i].end);
    f->ranges_len = 0;
    if (fstat(f->real_fd, &st) != 0 || syscall(SYS_ftruncate, f->shadow_fd, st.st_size) != 0)
        die("cannot resize", f->shadow_path);
}

/* The system may write back at any time: sometimes a write is durable before any sync, whole or
 * torn between sectors. */
static void maybe_early(struct file *f, off_t start, off_t len) {
    if (chance(100) >= set.early_percent) return;
    if (chance(2)) len = SECTOR_BYTES * (off_t)chance(len / SECTOR_BYTES + 1);
    open_shadow(f);
    harden_cut(f);
    harden_range(f, start, start + len);
    count.early++;
}

/* ---- opening ---- */

/* Starts to watch the file, if it is one of ours and new. What it holds already was not seen to
 * be synced, so all of it is dirty. */
static void adopt(int fd) {
    char path[PATH_MAX], shadow[PATH_MAX], link[64];
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return;
    if (!path_of_fd(fd, path) || !shadow_of(path, shadow)) return;
    pthread_mutex_lock(&lock);
    if (!find(&st)) {
        struct file *f = files;
        while (f < files + FILES_MAX && f->used) f++;
        if (f == files + FILES_MAX) die("too many files", path);
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        f->real_fd = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
        if (f->real_fd < 0) die("cannot open for reading", path);
        memcpy(f->shadow_path, shadow, sizeof shadow);
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        f->shadow_fd = -1;
        f->cut = st.st_size;
        f->ranges_len = 0;
        mark(f, 0, st.st_size);
        f->used = 1;
    }
    pthread_mutex_unlock(&lock);
}

static int open_at(int dir, const char *path, int flags, mode_t mode) {
    /* O_TRUNC is done afterwards, as the truncation that it is. */
    int cut = on() && (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY;
    int fd = syscall(SYS_openat, dir, path, cut ? flags & ~O_TRUNC : flags, mode);
    if (fd < 0 || !on()) return fd;
    int saved = errno;
    adopt(fd);
    if (cut) (void)!ftruncate(fd, 0); /* fails on what is no regular file, where it means nothing */
    errno = saved;
    return fd;
}

#define MODE_ARGUMENT(flags, mode)                            \
    mode_t mode = 0;                                          \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                         \
        va_start(rest, flags);                                \
        mode = va_arg(rest, mode_t);                          \
        va_end(rest);                                         \
    }

int open(const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return open_at(dir, path, flags, mode);
}

int creat(const char *path, mode_t mode) {
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* What open becomes under _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int openat64(int dir, const char *path, int flags, ...) __attribute__((alias("openat")));
int creat64(const char *path, mode_t mode) __attribute__((alias("creat")));

/* ---- writing ---- */

/* The watched file behind a descriptor, with the lock held; or NULL without it. */
static struct file *enter(int fd) {
    struct stat st;
    if (!on() || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return NULL;
    pthread_mutex_lock(&lock);
    struct file *f = find(&st);
    if (!f) pthread_mutex_unlock(&lock);
    return f;
}

static ssize_t leave_write(struct file *f, ssize_t done, off_t start) {
    int saved = errno;
    if (!f) return done;
    if (done > 0) {
        count.writes++;
        mark(f, start, start + done);
        maybe_early(f, start, done);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

/* Where a write through the file position has begun; right for O_APPEND as well. */
static off_t begun(int fd, ssize_t done) { return done > 0 ? lseek(fd, 0, SEEK_CUR) - done : 0; }

ssize_t write(int fd, const void *data, size_t len) {
    struct file *f = enter(fd);
    ssize_t done = syscall(SYS_write, fd, data, len);
    return leave_write(f, done, f ? begun(fd, done) : 0);
}

ssize_t writev(int fd, const struct iovec *parts, int parts_len) {
    struct file *f = enter(fd);
    ssize_t done = syscall(SYS_writev, fd, parts, parts_len);
    return leave_write(f, done, f ? begun(fd, done) : 0);
}

/* Whether a write would need space that a full disk does not have. */
static int no_space(int fd, off_t end) {
    struct stat st;
    return set.full && switched_on() && fstat(fd, &st) == 0 && end > st.st_size;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t start) {
    struct file *f = enter(fd);
    if (f && no_space(fd, start + (off_t)len)) {
        errno = ENOSPC;
        return leave_write(f, -1, start);
    }
    return leave_write(f, syscall(SYS_pwrite64, fd, data, len, start), start);
}

ssize_t pwritev(int fd, const struct iovec *parts, int parts_len, off_t start) {
    struct file *f = enter(fd);
    return leave_write(f, syscall(SYS_pwritev, fd, parts, parts_len, start, 0), start);
}

int ftruncate(int fd, off_t size) {
    struct file *f = enter(fd);
    int done = syscall(SYS_ftruncate, fd, size);
    if (!f) return done;
    if (done == 0) {
        mark_cut(f, size);
        if (chance(100) < set.early_percent) {
            open_shadow(f);
            harden_cut(f);
        }
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int fallocate(int fd, int mode, off_t start, off_t len) {
    struct file *f = enter(fd);
    int done = syscall(SYS_fallocate, fd, mode, start, len);
    if (!f) return done;
    /* Plain allocation changes only the size, which every sync carries over. The rest moves or
     * zeroes bytes; those that shift do so up to the end of the file. */
    if (done == 0 && (mode & ~FALLOC_FL_KEEP_SIZE) != 0) {
        struct stat st;
        if (fstat(fd, &st) != 0) die("cannot stat", f->shadow_path);
        mark(f, start, st.st_size);
        mark_cut(f, st.st_size);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int posix_fallocate(int fd, off_t start, off_t len) {
    int saved = errno;
    int failed = fallocate(fd, 0, start, len) == 0 ? 0 : errno;
    errno = saved;
    return failed;
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t start)
    __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int parts_len, off64_t start)
    __attribute__((alias("pwritev")));
int ftruncate64(int fd, off64_t size) __attribute__((alias("ftruncate")));
int fallocate64(int fd, int mode, off64_t start, off64_t len) __attribute__((alias("fallocate")));
int posix_fallocate64(int fd, off64_t start, off64_t len)
    __attribute__((alias("posix_fallocate")));

/* ---- syncing ---- */

static void pause_half(void) {
    if (set.sync_delay_micros) usleep(set.sync_delay_micros / 2);
}

static int sync_locked(struct file *f) {
    count.syncs++;
    unsigned long draw = armed() ? chance(100) : 100;
    if (draw < set.fail_percent) {
        count.failed++;
        /* As Linux does: the pages are marked clean though they never reached the disk. A
         * truncation is metadata in the journal and stays due. */
        if (set.lose) f->ranges_len = 0;
        return EIO;
    }
    harden(f);
    if (draw < set.fail_percent + set.ambiguous_percent) {
        count.ambiguous++;
        return EIO;
    }
    return 0;
}

/* Half of the delay comes before the copy, so that a caller that does not await the sync is caught;
 * half after it, so that a write during the sync is not taken for covered. */
static int sync_fd(int fd, long call) {
    struct file *f = enter(fd);
    if (!f) return syscall(call, fd);
    pthread_mutex_unlock(&lock);
    pause_half();
    f = enter(fd); /* again, since it may have been unlinked meanwhile */
    if (!f) return 0;
    int failed = sync_locked(f);
    publish();
    pthread_mutex_unlock(&lock);
    pause_half();
    if (failed) errno = failed;
    return failed ? -1 : 0;
}

int fsync(int fd) { return sync_fd(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_fd(fd, SYS_fdatasync); }

/* ---- names that go and change ---- */

static int unlink_at(int dir, const char *path, int flags) {
    char gone[PATH_MAX];
    struct stat st;
    if (!on() || (flags & AT_REMOVEDIR) || !shadow_at(dir, path, gone))
        return syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&lock);
    int known = fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    int done = syscall(SYS_unlinkat, dir, path, flags);
    int saved = errno;
    if (done == 0) {
        syscall(SYS_unlinkat, AT_FDCWD, gone, 0);
        if (known && st.st_nlink == 1) forget(find(&st));
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

int unlink(const char *path) { return unlink_at(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char *path, int flags) { return unlink_at(dir, path, flags); }

/* The name moves at once, the content does not: a file that was never synced is empty under its
 * new name, whatever that name held before. */
static void rename_shadow(struct file *f, const char *from, const char *to) {
    if (f && from && to) open_shadow(f);
    if (to) syscall(SYS_unlinkat, AT_FDCWD, to, 0);
    if (from && to) syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    else if (from) syscall(SYS_unlinkat, AT_FDCWD, from, 0);
    if (f && to) memcpy(f->shadow_path, to, strlen(to) + 1);
    else forget(f);
}

int renameat2(int old_dir, const char *old, int new_dir, const char *new, unsigned flags) {
    char from[PATH_MAX], to[PATH_MAX];
    struct stat moved, lost;
    int ours_from = on() && shadow_at(old_dir, old, from);
    int ours_to = on() && shadow_at(new_dir, new, to);
    if (!ours_from && !ours_to) return syscall(SYS_renameat2, old_dir, old, new_dir, new, flags);
    if (flags & ~RENAME_NOREPLACE) die("only a plain rename is simulated", new);
    pthread_mutex_lock(&lock);
    int known = fstatat(old_dir, old, &moved, AT_SYMLINK_NOFOLLOW) == 0;
    int replaced = fstatat(new_dir, new, &lost, AT_SYMLINK_NOFOLLOW) == 0;
    if (known && S_ISDIR(moved.st_mode)) die("renaming a directory is not simulated", old);
    int done = syscall(SYS_renameat2, old_dir, old, new_dir, new, flags);
    int saved = errno;
    if (done == 0 && known && !(replaced && lost.st_ino == moved.st_ino)) {
        if (replaced && lost.st_nlink == 1) forget(find(&lost));
        rename_shadow(find(&moved), ours_from ? from : NULL, ours_to ? to : NULL);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

int renameat(int old_dir, const char *old, int new_dir, const char *new) {
    return renameat2(old_dir, old, new_dir, new, 0);
}

int rename(const char *old, const char *new) {
    return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0);
}
