// Resource limits of one child (setrlimit), and what the zygote itself already uses.
#pragma once

#include <cstdint>

#include "unique_fd.h"

namespace rocstar {

struct Rlimits {
  uint64_t address_space_bytes;
  uint64_t cpu_s;
  uint64_t file_bytes;
  uint64_t open_files = 256;
  // 0: unlimited. It counts every process of the uid, so it needs a uid of one's own. Of signals that wait, which
  // are counted by uid as well, at most 64: none of real time without a uid of one's own (the others always arrive).
  uint64_t processes = 0;
};

// Sets hard and soft limits alike, except for CPU time: SIGXCPU comes at cpu_s, SIGKILL a second later.
// Returns 0 or errno.
int apply_rlimits(const Rlimits& limits);

// Tells the size of this process's address space (VmSize), which RLIMIT_AS counts from. Throws
// std::runtime_error where /proc is missing. Reading costs one system call, so it is done before every fork.
class AddressSpaceMeter {
 public:
  AddressSpaceMeter();
  uint64_t bytes() const;

 private:
  UniqueFd statm_;
};

}  // namespace rocstar
