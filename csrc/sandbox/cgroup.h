// A memory cgroup around the whole sandbox, where one may be made: what its processes hold together stays below a
// limit even when address space limits do not add up to it, and the kernel kills one of them instead of a neighbour.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "unique_fd.h"

namespace rocstar {

class Cgroup {
 public:
  // Makes a group below this process's own (version 1) or beside it (version 2, where a group with processes has no
  // children) and enters it. Nothing where it cannot be made: no such controller, no right, read-only. Groups of
  // supervisors that are gone are removed first.
  static std::optional<Cgroup> enter(uint64_t memory_bytes);

  Cgroup(Cgroup&&) = default;
  Cgroup& operator=(Cgroup&&) = default;
  // Leaves the group and removes it. Its processes must be gone by then.
  ~Cgroup();

  // How many processes the kernel has killed in it for want of memory.
  uint64_t kills() const;

 private:
  Cgroup() = default;

  UniqueFd parent_;        // the directory it lies in; opened before mounts become read-only
  UniqueFd parent_procs_;  // where this process returns to
  UniqueFd events_;
  std::string name_;
};

}  // namespace rocstar
