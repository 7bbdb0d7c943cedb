// What programs leave in a directory: how much it is, and its end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rocstar {

// Deeper directories are not weighed: each level takes descriptors, and nobody nests so many but to hide.
inline constexpr uint32_t kDeepest = 64;

struct Weight {
  uint64_t bytes = 0;    // on the disk or in memory
  uint64_t entries = 0;  // that were looked at
  bool whole = true;     // there was nothing else
  bool deep = false;     // some of it is below kDeepest, or in a directory that cannot be read
};

// Looks at `most_entries` at most.
Weight weigh_tree(int directory, uint64_t most_entries);

// Told of each file that is gone, what it had taken.
using Gone = std::function<void(uint64_t bytes)>;

// Removes what is in a directory, however deep, and follows no link. Returns the number of entries that were there.
uint64_t remove_contents(int directory, const Gone& gone = nullptr);

// A directory and what is in it, as far as that can be removed.
void remove_tree(const std::string& path);

}  // namespace rocstar
