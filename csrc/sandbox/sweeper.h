// Removes what programs left behind where that takes long, in a thread of its own.
//
//   Home gives its directory back --take--> [ sweeper's thread ] --emptied--> Homes uses the slot again
//
// The kernel frees a large file's pages in one go, and takes microseconds for each small one: the supervisor, which
// answers for all programs, would stand still for a second at the worst. Nobody waits for the thread but who ends it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "unique_fd.h"

namespace rocstar {

struct Leftover {
  uint32_t slot = 0;  // whose directory it is
  std::string path;
  UniqueFd directory;
  uint64_t bytes = 0;  // that it takes
};

// Invariants: what was taken is removed, in this order, before `emptied` tells of its slot, which it does once; all is
// removed when this is gone.
class Sweeper {
 public:
  Sweeper() = default;
  Sweeper(const Sweeper&) = delete;
  ~Sweeper();

  // Starts the thread. Throws std::system_error if there is none to be had: then it is not taken.
  void take(Leftover& leftover);
  // The slots of what was removed since. With `wait` there is one, if there is anything at all.
  std::vector<uint32_t> emptied(bool wait);
  // That are still to be removed.
  uint64_t bytes_left();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Leftover> waiting_;
  std::vector<uint32_t> emptied_;
  uint64_t bytes_left_ = 0;
  bool at_work_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace rocstar
