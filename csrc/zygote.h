// Forks a child out of the warm interpreter and confines it before it runs anything of the user's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rlimits.h"
#include "seccomp.h"
#include "unique_fd.h"

namespace rocstar {

// The layers of every child of one zygote. Names as `names()` joins them: nnp+rlimits+landlock+seccomp+uid.
struct Layers {
  bool seccomp = true;
  bool landlock = true;
  bool slot_uid = false;  // a user of the slot's own; needs root
  std::vector<std::string> readable_paths;
  uint32_t first_uid = 100000;

  std::string names() const;
};

// Descriptors of a child, the same in each: the standard three, and the one where the value leaves.
inline constexpr int kValueFd = 3;
inline constexpr int kFirstOtherFd = 4;

// The first byte on the value pipe, written before the user's code exists: what comes later cannot deny it.
inline constexpr char kReady = 'R';
inline constexpr char kNotReady = 'F';

// What the parent of a running child holds.
struct ChildHandle {
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd out;  // read ends, non-blocking
  UniqueFd err;
  UniqueFd value;
};

struct ForkResult {
  bool in_child = false;
  ChildHandle handle;  // in the parent
};

class Zygote {
 public:
  explicit Zygote(Layers layers);

  // Returns twice. In the child everything is closed but 0..3 and every layer is active; a child that cannot be
  // confined says so on the value pipe and exits. Throws std::system_error in the parent when it cannot fork.
  ForkResult fork(const Rlimits& limits, const std::string& stdin_bytes, uint32_t slot);

  // Address space and resident set of a child that has not run anything: what a program uses counts from there.
  uint64_t baseline_address_space() const { return meter_.bytes(); }
  uint64_t baseline_resident() const { return baseline_resident_; }
  const Layers& layers() const { return layers_; }

 private:
  struct Pipes;
  void confine(const Pipes& pipes, const Rlimits& limits, uint32_t slot, pid_t parent);
  int enter_layers(const Rlimits& limits, uint32_t slot, pid_t parent);

  Layers layers_;
  SeccompFilter filter_;
  UniqueFd null_;
  UniqueFd ruleset_;
  AddressSpaceMeter meter_;
  uint64_t baseline_resident_ = 0;
};

// The parent's death kills this process; `parent` is checked against the one that may be gone already.
bool die_with_parent(pid_t parent);

// Backs the interpreter's heap with huge pages where the kernel can (Linux >= 6.1): forking copies fewer page
// tables. Returns the number of bytes asked for and granted.
uint64_t collapse_heap();

}  // namespace rocstar
