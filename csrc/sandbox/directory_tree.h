// Measures and removes the files that programs leave in a directory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rocstar {

// Deeper directories are not measured: each level takes descriptors, and only programs that hide files nest so deep.
inline constexpr uint32_t kDeepest = 64;

struct Weight {
  uint64_t bytes = 0;    // on the disk or in memory
  uint64_t entries = 0;  // examined
  bool whole = true;     // all entries were examined
  bool deep = false;     // some of it is below kDeepest, or in a directory that cannot be read
};

// Examines at most `most_entries`.
Weight weigh_tree(int directory, uint64_t most_entries);

// Called with the size of each removed file.
using Gone = std::function<void(uint64_t bytes)>;

// Removes the contents of a directory at any depth without following links. Returns the number of entries.
uint64_t remove_contents(int directory, const Gone& gone = nullptr);

// Removes a directory and its contents as far as possible.
void remove_tree(const std::string& path);

}  // namespace rocstar
