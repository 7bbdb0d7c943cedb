// The entries of a directory, by its descriptor.
#pragma once

#include <dirent.h>
#include <fcntl.h>

#include <cstring>
#include <memory>

#include "unique_fd.h"

namespace rocstar {

struct CloseDir {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Listing = std::unique_ptr<DIR, CloseDir>;

// `directory` stays the caller's. Null if it cannot be read.
inline Listing list(int directory) {
  const int own = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return Listing(own < 0 ? nullptr : fdopendir(own));
}

inline bool is_dots(const char* name) { return std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0; }

inline UniqueFd open_below(int directory, const char* name) {
  return UniqueFd(openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace rocstar
