// Directories of tests, and files in them.
#pragma once

#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "unique_fd.h"

namespace rocstar::fake {

// A directory of the test's own, removed at its end.
class Place {
 public:
  Place() : path_("/tmp/rocstar_test-XXXXXX") { CHECK(mkdtemp(path_.data()) != nullptr); }
  ~Place() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline UniqueFd open_directory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK(fd);
  return fd;
}

inline void write_file(const std::string& path) { std::ofstream(path) << "x"; }

}  // namespace rocstar::fake
