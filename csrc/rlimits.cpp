#include "rlimits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>

namespace rocstar {
namespace {

// glibc types the resource as an enum in C++ and musl as an int.
using Resource = decltype(RLIMIT_AS);

bool set(Resource resource, uint64_t soft, uint64_t hard) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return false;
  // A hard limit set from outside may be lower already; raising it would need a privilege.
  limit.rlim_max = std::min<rlim_t>(limit.rlim_max, hard);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, soft);
  return setrlimit(resource, &limit) == 0;
}

}  // namespace

int apply_rlimits(const Rlimits& limits) {
  const bool done =
      set(RLIMIT_AS, limits.address_space_bytes, limits.address_space_bytes) &&
      set(RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1) && set(RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes) &&
      set(RLIMIT_NOFILE, limits.open_files, limits.open_files) && set(RLIMIT_CORE, 0, 0) && set(RLIMIT_MEMLOCK, 0, 0) &&
      set(RLIMIT_MSGQUEUE, 0, 0) && (limits.processes == 0 || set(RLIMIT_NPROC, limits.processes, limits.processes));
  return done ? 0 : errno;
}

uint64_t address_space_bytes() {
  FILE* file = std::fopen("/proc/self/statm", "re");
  unsigned long pages = 0;
  const bool read = file != nullptr && std::fscanf(file, "%lu", &pages) == 1;
  if (file != nullptr) std::fclose(file);
  if (!read) throw std::runtime_error("cannot read /proc/self/statm: is /proc mounted?");
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace rocstar
