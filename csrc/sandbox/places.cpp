// A library loaded before all others (LD_PRELOAD) in interpreters, bash, its tools and C++ programs: names that a
// program expects and that its sandbox has elsewhere. It confines nothing: who passes it by finds what the kernel says.
//
//   /dev/stdin, /dev/stdout, /dev/stderr, /dev/fd/N, /proc/self/fd/N   ->  a copy of that descriptor
//   /mnt/data/NAME                                                     ->  NAME in the program's directory
//   /tmp/NAME, /var/tmp/NAME, /dev/shm/NAME                            ->  .tmp/NAME in there
//   sem_open                                                           ->  a semaphore of this process
//
// Nothing is translated before there is a directory, so that interpreters import from /tmp as they are. A zygote names
// it by a call; a program that a child executes finds it in the environment, and makes room for its threads as well.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <initializer_list>

#include "places.h"
#include "stacks.h"

namespace {

using rocstar::kPlaces;
using rocstar::Place;

constexpr size_t kMostKept = 32;

const char* home = "";  // the program's directory, absolute; empty: nothing is translated
bool has_proc = true;   // whether the kernel has names for descriptors: not in an interpreter, which has no /proc
const char* kept[kMostKept];
size_t num_kept = 0;

bool below(const char* path, const char* folder) {
  const size_t length = strlen(folder);
  return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

bool is_kept(const char* path) {
  if (below(path, home)) return true;
  for (size_t i = 0; i < num_kept; ++i) {
    if (below(path, kept[i])) return true;
  }
  return false;
}

int make_folder(const char* path);

// The path that is meant. `makes`: something is to be made there, or the folder to be listed, so it is made before.
// A look at the place itself, of which paths to the program's directory may have the name, makes nothing.
class Path {
 public:
  explicit Path(const char* path, bool makes = false) : path_(path) {
    if (path == nullptr || path[0] != '/' || home[0] == '\0' || strchr("tvdm", path[1]) == nullptr) return;
    for (const Place& place : kPlaces) {
      if (!below(path, place.folder) || is_kept(path)) continue;
      lead(place, path + strlen(place.folder), makes);
      return;
    }
  }
  operator const char*() const { return path_; }

 private:
  void lead(const Place& place, const char* rest, bool makes) {
    const bool itself = strspn(rest, "/") == strlen(rest);
    const int folder = snprintf(room_, sizeof room_, "%s%s", home, itself && !makes ? "" : place.within);
    if (folder < 0 || folder + strlen(rest) >= sizeof room_) return;
    if (makes && place.within[0] != '\0') {
      const int before = errno;
      make_folder(room_);  // most often it is there
      errno = before;
    }
    memcpy(room_ + folder, rest, strlen(rest) + 1);
    path_ = room_;
  }

  const char* path_;
  char room_[PATH_MAX];
};

// The number of a descriptor of this process by its name; -1 for any other name.
int own_descriptor(const char* path) {
  if (path == nullptr || home[0] == '\0' || has_proc ||
      (strncmp(path, "/dev/", 5) != 0 && strncmp(path, "/proc/", 6) != 0))
    return -1;
  if (strcmp(path, "/dev/stdin") == 0) return STDIN_FILENO;
  if (strcmp(path, "/dev/stdout") == 0) return STDOUT_FILENO;
  if (strcmp(path, "/dev/stderr") == 0) return STDERR_FILENO;
  for (const char* folder : {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"}) {
    const size_t length = strlen(folder);
    if (strncmp(path, folder, length) != 0 || path[length] < '0' || path[length] > '9') continue;
    char* end = nullptr;
    const long number = strtol(path + length, &end, 10);
    if (*end == '\0' && number < 4096) return static_cast<int>(number);
  }
  return -1;
}

int refused(int error) {
  errno = error;
  return -1;
}

// With the rights that it has: the kernel would give others, where the user may open what is behind it.
int copy_of(int descriptor, int flags) {
  const int mode = fcntl(descriptor, F_GETFL), wanted = flags & O_ACCMODE;
  struct stat info;
  if (mode < 0 || fstat(descriptor, &info) != 0) return refused(ENOENT);
  if (flags & O_DIRECTORY) return refused(ENOTDIR);
  if (S_ISSOCK(info.st_mode)) return refused(ENXIO);
  if ((mode & O_ACCMODE) != O_RDWR && (mode & O_ACCMODE) != wanted) return refused(EACCES);
  return fcntl(descriptor, flags & O_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
}

mode_t mode_of(int flags, va_list rest) {
  return flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(rest, mode_t) : 0;
}

// Defines the C library's function `name` as this library has it. Of another name to the compiler, whose headers
// declare the library's own, with attributes that differ from one library to the next.
#define INSTEAD_OF(Result, name, parameters)          \
  extern "C" Result own_##name parameters asm(#name); \
  Result own_##name parameters

// The library's own function of that name. Looked up at the first call, most often in the zygote.
#define NEXT(name) static auto* const real = reinterpret_cast<decltype(&own_##name)>(dlsym(RTLD_NEXT, #name))

FILE* stream_of(int descriptor, const char* mode) {
  const int rights = strchr(mode, '+') != nullptr ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  const int copy = copy_of(descriptor, rights | (strchr(mode, 'e') != nullptr ? O_CLOEXEC : 0));
  return copy < 0 ? nullptr : fdopen(copy, mode);
}

bool makes(int flags) { return (flags & (O_CREAT | O_DIRECTORY)) != 0; }

int may_reach(int descriptor) { return fcntl(descriptor, F_GETFD) < 0 ? -1 : 0; }

// As much room as one file may take, where a program may write at all.
bool tells_room(const char* path, struct statvfs64* found) {
  bool ours = home[0] != '\0' && (path[0] != '/' || below(path, home));
  for (const Place& place : kPlaces) ours |= home[0] != '\0' && below(path, place.folder);
  rlimit most;
  if (!ours || getrlimit(RLIMIT_FSIZE, &most) != 0) return false;
  memset(found, 0, sizeof *found);
  found->f_bsize = found->f_frsize = 4096;
  found->f_blocks = found->f_bfree = found->f_bavail = most.rlim_cur / 4096;
  found->f_namemax = NAME_MAX;
  return true;
}

}  // namespace

// Of a zygote: where its children will write their directory, empty until then, and folders that stay what they are.
extern "C" void rocstar_places(const char* directory, const char* const* folders, size_t number) {
  home = directory;
  has_proc = false;
  for (num_kept = 0; num_kept < number && num_kept < kMostKept; ++num_kept) kept[num_kept] = folders[num_kept];
}

namespace {

[[gnu::constructor]] void start_program() {
  const char* const directory = getenv("ROCSTAR_HOME");
  rlimit memory;
  if (directory == nullptr) return;
  home = directory;
  if (getrlimit(RLIMIT_AS, &memory) == 0) rocstar::bound_stacks(memory.rlim_cur);
}

}  // namespace

#define OPEN(name)                                                                  \
  INSTEAD_OF(int, name, (const char* path, int flags, ...)) {                       \
    NEXT(name);                                                                     \
    if (const int own = own_descriptor(path); own >= 0) return copy_of(own, flags); \
    va_list rest;                                                                   \
    va_start(rest, flags);                                                          \
    const mode_t mode = mode_of(flags, rest);                                       \
    va_end(rest);                                                                   \
    return real(Path(path, makes(flags)), flags, mode);                             \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                \
  INSTEAD_OF(int, name, (int folder, const char* path, int flags, ...)) {           \
    NEXT(name);                                                                     \
    if (const int own = own_descriptor(path); own >= 0) return copy_of(own, flags); \
    va_list rest;                                                                   \
    va_start(rest, flags);                                                          \
    const mode_t mode = mode_of(flags, rest);                                       \
    va_end(rest);                                                                   \
    return real(folder, Path(path, makes(flags)), flags, mode);                     \
  }
OPENAT(openat)
OPENAT(openat64)

INSTEAD_OF(int, __open_2, (const char* path, int flags)) { return own_open(path, flags); }
INSTEAD_OF(int, __open64_2, (const char* path, int flags)) { return own_open64(path, flags); }
INSTEAD_OF(int, __openat_2, (int folder, const char* path, int flags)) { return own_openat(folder, path, flags); }
INSTEAD_OF(int, __openat64_2, (int folder, const char* path, int flags)) { return own_openat64(folder, path, flags); }

#define FOPEN(name)                                                                  \
  INSTEAD_OF(FILE*, name, (const char* path, const char* mode)) {                    \
    NEXT(name);                                                                      \
    if (const int own = own_descriptor(path); own >= 0) return stream_of(own, mode); \
    return real(Path(path, mode[0] != 'r'), mode);                                   \
  }
FOPEN(fopen)
FOPEN(fopen64)

#define FREOPEN(name)                                                           \
  INSTEAD_OF(FILE*, name, (const char* path, const char* mode, FILE* stream)) { \
    NEXT(name);                                                                 \
    return real(Path(path, mode[0] != 'r'), mode, stream);                      \
  }
FREOPEN(freopen)
FREOPEN(freopen64)

#define STAT(name, Stat, of_descriptor)                                                   \
  INSTEAD_OF(int, name, (const char* path, struct Stat* found)) {                         \
    NEXT(name);                                                                           \
    if (const int own = own_descriptor(path); own >= 0) return of_descriptor(own, found); \
    return real(Path(path), found);                                                       \
  }
STAT(stat, stat, fstat)
STAT(stat64, stat64, fstat64)

#define FSTATAT(name, Stat, of_descriptor)                                               \
  INSTEAD_OF(int, name, (int folder, const char* path, struct Stat* found, int flags)) { \
    NEXT(name);                                                                          \
    const int own = (flags & AT_SYMLINK_NOFOLLOW) != 0 ? -1 : own_descriptor(path);      \
    if (own >= 0) return of_descriptor(own, found);                                      \
    return real(folder, Path(path), found, flags);                                       \
  }
FSTATAT(fstatat, stat, fstat)
FSTATAT(fstatat64, stat64, fstat64)

INSTEAD_OF(int, statx, (int folder, const char* path, int flags, unsigned mask, struct statx* found)) {
  NEXT(statx);
  const int own = (flags & AT_SYMLINK_NOFOLLOW) != 0 ? -1 : own_descriptor(path);
  if (own >= 0) return real(own, "", flags | AT_EMPTY_PATH, mask, found);
  return real(folder, Path(path), flags, mask, found);
}

INSTEAD_OF(int, access, (const char* path, int mode)) {
  NEXT(access);
  if (const int own = own_descriptor(path); own >= 0) return may_reach(own);
  return real(Path(path), mode);
}

INSTEAD_OF(int, faccessat, (int folder, const char* path, int mode, int flags)) {
  NEXT(faccessat);
  if (const int own = own_descriptor(path); own >= 0) return may_reach(own);
  return real(folder, Path(path), mode, flags);
}

INSTEAD_OF(int, statvfs64, (const char* path, struct statvfs64* found)) {
  NEXT(statvfs64);
  return path != nullptr && tells_room(path, found) ? 0 : real(path, found);
}

// With the path, or both paths, that are meant; the rest as it is.
#define LEAD(Result, name, parameters, ...) \
  INSTEAD_OF(Result, name, parameters) {    \
    NEXT(name);                             \
    return real(__VA_ARGS__);               \
  }
LEAD(int, lstat, (const char* path, struct stat* found), Path(path), found)
LEAD(int, lstat64, (const char* path, struct stat64* found), Path(path), found)
LEAD(int, creat, (const char* path, mode_t mode), Path(path, true), mode)
LEAD(int, creat64, (const char* path, mode_t mode), Path(path, true), mode)
LEAD(DIR*, opendir, (const char* path), Path(path, true))
LEAD(int, chdir, (const char* path), Path(path, true))
LEAD(int, mkdir, (const char* path, mode_t mode), Path(path, true), mode)
LEAD(int, mkdirat, (int folder, const char* path, mode_t mode), folder, Path(path, true), mode)
LEAD(int, rmdir, (const char* path), Path(path))
LEAD(int, unlink, (const char* path), Path(path))
LEAD(int, unlinkat, (int folder, const char* path, int flags), folder, Path(path), flags)
LEAD(int, remove, (const char* path), Path(path))
LEAD(int, rename, (const char* path, const char* other), Path(path), Path(other, true))
LEAD(int, renameat, (int from, const char* path, int to, const char* other), from, Path(path), to, Path(other, true))
LEAD(int, renameat2, (int from, const char* path, int to, const char* other, unsigned flags), from, Path(path), to,
     Path(other, true), flags)
LEAD(int, euidaccess, (const char* path, int mode), Path(path), mode)
LEAD(int, eaccess, (const char* path, int mode), Path(path), mode)
LEAD(char*, realpath, (const char* path, char* found), Path(path), found)
LEAD(int, truncate, (const char* path, off_t length), Path(path), length)
LEAD(int, truncate64, (const char* path, off64_t length), Path(path), length)
LEAD(int, chmod, (const char* path, mode_t mode), Path(path), mode)
LEAD(int, chown, (const char* path, uid_t user, gid_t group), Path(path), user, group)
LEAD(ssize_t, readlink, (const char* path, char* to, size_t size), Path(path), to, size)
LEAD(ssize_t, readlinkat, (int folder, const char* path, char* to, size_t size), folder, Path(path), to, size)
LEAD(int, utimensat, (int folder, const char* path, const struct timespec* times, int flags), folder, Path(path), times,
     flags)

// A name that ends with XXXXXX and `suffix` characters, which the library chooses: it is chosen for the path that is
// meant, and told in the name that was given.
#define COMPLETED(Result, name, parameters, suffix, told, ...)                     \
  INSTEAD_OF(Result, name, parameters) {                                           \
    NEXT(name);                                                                    \
    const Path meant(given, true);                                                 \
    char path[PATH_MAX];                                                           \
    const size_t length = strlen(given), chosen = 6 + static_cast<size_t>(suffix); \
    if (meant == given || suffix < 0 || chosen > length) return real(__VA_ARGS__); \
    char* const asked = given;                                                     \
    strcpy(path, meant);                                                           \
    given = path;                                                                  \
    const Result made = real(__VA_ARGS__);                                         \
    memcpy(asked + length - chosen, path + strlen(path) - chosen, chosen);         \
    return told;                                                                   \
  }
COMPLETED(int, mkstemp, (char* given), 0, made, given)
COMPLETED(int, mkstemp64, (char* given), 0, made, given)
COMPLETED(int, mkostemp, (char* given, int flags), 0, made, given, flags)
COMPLETED(int, mkostemp64, (char* given, int flags), 0, made, given, flags)
COMPLETED(char*, mkdtemp, (char* given), 0, made == nullptr ? nullptr : asked, given)
COMPLETED(int, mkstemps, (char* given, int suffix), suffix, made, given, suffix)
COMPLETED(int, mkstemps64, (char* given, int suffix), suffix, made, given, suffix)
COMPLETED(int, mkostemps, (char* given, int suffix, int flags), suffix, made, given, suffix, flags)
COMPLETED(int, mkostemps64, (char* given, int suffix, int flags), suffix, made, given, suffix, flags)

#define TMPFILE(name)                               \
  INSTEAD_OF(FILE*, name, ()) {                     \
    NEXT(name);                                     \
    if (home[0] == '\0') return real();             \
    char path[] = "/tmp/XXXXXX";                    \
    const int file = own_mkostemp(path, O_CLOEXEC); \
    if (file < 0) return nullptr;                   \
    own_unlink(path);                               \
    return fdopen(file, "w+");                      \
  }
TMPFILE(tmpfile)
TMPFILE(tmpfile64)

namespace {
int make_folder(const char* path) { return own_mkdir(path, 0700); }  // below `home`, so it is as it is
}  // namespace

// A semaphore that only this process has, whatever its name: there is no other process that could look for it.
INSTEAD_OF(sem_t*, sem_open, (const char*, int flags, ...)) {
  if ((flags & O_CREAT) == 0) {
    errno = ENOENT;
    return SEM_FAILED;
  }
  va_list rest;
  va_start(rest, flags);
  va_arg(rest, mode_t);
  const unsigned value = va_arg(rest, unsigned);
  va_end(rest);
  auto* const made = static_cast<sem_t*>(malloc(sizeof(sem_t)));
  if (made != nullptr && sem_init(made, 0, value) == 0) return made;
  free(made);
  return SEM_FAILED;
}

INSTEAD_OF(int, sem_close, (sem_t * semaphore)) {
  sem_destroy(semaphore);
  free(semaphore);
  return 0;
}

INSTEAD_OF(int, sem_unlink, (const char*)) { return 0; }
