// Which layers hold here: probed by the supervisor before it starts anything, entered once, inherited by all.
//
//   tier A   no_new_privs, rlimits, a system call filter, and for files Landlock or a uid of the slot's own
//   tier B   A, in namespaces of its own
//   none     less than A: refused, unless the pool allows it
#pragma once

#include <set>
#include <string>
#include <vector>

#include "supervise.h"

namespace rocstar {

struct TierOptions {
  std::vector<std::string> readable_paths;
  std::vector<std::string> kept_paths;  // what zygotes import from, besides the readable paths
  std::string scratch_parent;           // empty: no scratch directories
  uint64_t scratch_bytes = 0;           // of all scratch directories together, in tier B
  // Folders that only their owner may enter and that contain Python: usually homes.
  std::vector<std::string> private_folders;
  bool allow_no_isolation = false;
  std::set<std::string> without;  // layers to leave out
};

// Completes `supervisor`: homes, the zygotes' options, the HELLO frame. Returns false after sending FATAL.
bool enter_tier(const TierOptions& options, SupervisorOptions& supervisor);

}  // namespace rocstar
