/* Preloaded into every process of a job: counts the calls that write below FAULT_FOLDER in a file of all processes,
   FAULT_COUNTER, and lets call number FAULT_AT fail with errno FAULT_ERROR, or kills its process if that is 0; with
   FAULT_STAYS also all later ones. FAULT_LOG gets the name of the call. FAULT_CLOCK: seconds that the clock jumps
   forward at every second of the calls, and back after it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_long *counter(void) {
  static atomic_long *count;
  const char *name = getenv("FAULT_COUNTER");
  if (!count && name) {
    int fd = REAL(open)(name, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(0, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (map != MAP_FAILED) count = map;
  }
  return count;
}

static int fails(const char *call, const char *path) {
  const char *folder = getenv("FAULT_FOLDER"), *at = getenv("FAULT_AT"), *log = getenv("FAULT_LOG");
  char whole[2 * PATH_MAX];
  if (!folder || !path) return 0;
  if (path[0] != '/') {
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) return 0;
    snprintf(whole, sizeof whole, "%s/%s", here, path);
    path = whole;
  }
  if (strncmp(path, folder, strlen(folder)) || !counter()) return 0;
  long number = atomic_fetch_add(counter(), 1) + 1, chosen = at ? atol(at) : 0;
  if (!chosen || number < chosen || (number > chosen && !getenv("FAULT_STAYS"))) return 0;
  int error = atoi(getenv("FAULT_ERROR"));
  int fd = log ? REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (fd >= 0) {
    char line[2 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, call, path);
    if (REAL(write)(fd, line, length) < 0) abort();
    close(fd);
  }
  if (!error) kill(getpid(), SIGKILL);
  errno = error;
  return 1;
}

static int fd_fails(const char *call, int fd) {
  char link[64], path[PATH_MAX];
  if (fd < 3 || !getenv("FAULT_FOLDER")) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return fails(call, path);
}

#define OPEN(name, ...)                                                        \
  {                                                                            \
    va_list rest;                                                              \
    va_start(rest, flags);                                                     \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;    \
    va_end(rest);                                                              \
    if (flags & (O_WRONLY | O_RDWR | O_CREAT) && fails("open", path)) return -1; \
    return REAL(name)(__VA_ARGS__ path, flags, mode);                          \
  }
int open(const char *path, int flags, ...) OPEN(open, )
int open64(const char *path, int flags, ...) OPEN(open64, )
int openat(int folder, const char *path, int flags, ...) OPEN(openat, folder, )
int openat64(int folder, const char *path, int flags, ...) OPEN(openat64, folder, )

ssize_t write(int fd, const void *from, size_t size) { return fd_fails("write", fd) ? -1 : REAL(write)(fd, from, size); }
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
  return fd_fails("pwrite", fd) ? -1 : REAL(pwrite)(fd, from, size, at);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
  return fd_fails("pwrite", fd) ? -1 : REAL(pwrite64)(fd, from, size, at);
}
ssize_t writev(int fd, const struct iovec *from, int count) {
  return fd_fails("writev", fd) ? -1 : REAL(writev)(fd, from, count);
}
int fsync(int fd) { return fd_fails("fsync", fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fd_fails("fsync", fd) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t size) { return fd_fails("ftruncate", fd) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fd_fails("ftruncate", fd) ? -1 : REAL(ftruncate64)(fd, size); }
int rename(const char *from, const char *to) { return fails("rename", to) ? -1 : REAL(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  const char *seconds = getenv("FAULT_CLOCK");
  int result = REAL(clock_gettime)(clock, now);
  if (seconds && clock == CLOCK_REALTIME && counter() && atomic_load(counter()) % 2) now->tv_sec += atol(seconds);
  return result;
}
