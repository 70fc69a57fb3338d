// A file system that hangs: while the file TESTS_HANG_FLAG exists, the calls that it names ("open write rename") do
// not return below the directory TESTS_HANG_BELOW. Loaded by LD_PRELOAD. A call that hangs makes the file FLAG.hangs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int names(const char *call, const char *path) {
  const char *below = getenv("TESTS_HANG_BELOW"), *flag = getenv("TESTS_HANG_FLAG");
  if (!below || !flag || !path || strncmp(path, below, strlen(below))) return 0;
  char found[256] = "";
  int file = syscall(SYS_openat, AT_FDCWD, flag, O_RDONLY);
  if (file < 0) return 0;
  int failed = syscall(SYS_read, file, found, sizeof found - 1) < 0;
  syscall(SYS_close, file);
  return !failed && strstr(found, call) != NULL;
}

static void at_path(const char *call, const char *path) {
  while (names(call, path)) {
    char mark[PATH_MAX];
    snprintf(mark, sizeof mark, "%s.hangs", getenv("TESTS_HANG_FLAG"));
    syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT, 0666));
    usleep(20000);
  }
}

static void at_file(const char *call, int file) {
  char link[64], path[PATH_MAX] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (getenv("TESTS_HANG_FLAG") && readlink(link, path, sizeof path - 1) > 0) at_path(call, path);
}

#define NEXT(name, result, ...) ((result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define MODE \
  va_list more; \
  va_start(more, flags); \
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
  va_end(more)
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    MODE; \
    at_path("open", path); \
    return NEXT(name, int, const char *, int, mode_t)(path, flags, mode); \
  }
#define OPENAT(name) \
  int name(int directory, const char *path, int flags, ...) { \
    MODE; \
    at_path("open", path); \
    return NEXT(name, int, int, const char *, int, mode_t)(directory, path, flags, mode); \
  }
#define PWRITE(name) \
  ssize_t name(int file, const void *data, size_t size, off_t offset) { \
    at_file("write", file); \
    return NEXT(name, ssize_t, int, const void *, size_t, off_t)(file, data, size, offset); \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int file, const void *data, size_t size) {
  at_file("write", file);
  return NEXT(write, ssize_t, int, const void *, size_t)(file, data, size);
}

int fsync(int file) {
  at_file("write", file);
  return NEXT(fsync, int, int)(file);
}

int rename(const char *from, const char *to) {
  at_path("rename", from);
  return NEXT(rename, int, const char *, const char *)(from, to);
}
