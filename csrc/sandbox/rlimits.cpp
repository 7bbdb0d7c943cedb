#include "rlimits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace rocstar {
namespace {

// glibc types the resource as an enum in C++ and musl as an int.
using Resource = decltype(RLIMIT_AS);

// 0 keeps a file from being written, but not the machine's crash handler from being started, as root, for each program
// that dies of a signal (core_pattern with a pipe). At 1 the kernel does neither: see core(5).
constexpr uint64_t kNoCore = 1;

// Signals that may wait, where a program has a user of its own.
constexpr uint64_t kMostPending = 64;

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
  const uint64_t pending = std::min(limits.processes, kMostPending);
  const bool done =
      set(RLIMIT_AS, limits.address_space_bytes, limits.address_space_bytes) &&
      set(RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1) && set(RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes) &&
      set(RLIMIT_NOFILE, limits.open_files, limits.open_files) && set(RLIMIT_CORE, kNoCore, kNoCore) &&
      set(RLIMIT_MEMLOCK, 0, 0) && set(RLIMIT_MSGQUEUE, 0, 0) && set(RLIMIT_SIGPENDING, pending, pending) &&
      (limits.processes == 0 || set(RLIMIT_NPROC, limits.processes, limits.processes));
  return done ? 0 : errno;
}

AddressSpaceMeter::AddressSpaceMeter() : statm_(open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) { bytes(); }

uint64_t AddressSpaceMeter::bytes() const {
  char text[128] = {};
  if (pread(statm_.get(), text, sizeof text - 1, 0) <= 0) {
    throw std::runtime_error("cannot read /proc/self/statm: is /proc mounted?");
  }
  return std::strtoull(text, nullptr, 10) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace rocstar
