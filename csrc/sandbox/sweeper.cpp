#include "sweeper.h"

#include <algorithm>
#include <utility>

#include "directory_tree.h"

namespace rocstar {

Sweeper::~Sweeper() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Sweeper::take(Leftover& leftover) {
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  {
    const std::lock_guard lock(mutex_);
    bytes_left_ += leftover.bytes;
    waiting_.push_back(std::move(leftover));
  }
  changed_.notify_all();
}

std::vector<uint32_t> Sweeper::emptied(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [this] { return !emptied_.empty() || (waiting_.empty() && !at_work_); });
  return std::exchange(emptied_, {});
}

uint64_t Sweeper::bytes_left() {
  const std::lock_guard lock(mutex_);
  return bytes_left_;
}

void Sweeper::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Leftover leftover = std::move(waiting_.front());
    waiting_.pop_front();
    at_work_ = true;
    lock.unlock();
    uint64_t left = leftover.bytes;
    remove_contents(leftover.directory.get(), [this, &left](uint64_t bytes) {
      const std::lock_guard counting(mutex_);
      const uint64_t gone = std::min(bytes, left);
      left -= gone;
      bytes_left_ -= gone;
    });
    rmdir(leftover.path.c_str());
    lock.lock();
    bytes_left_ -= left;
    emptied_.push_back(leftover.slot);
    at_work_ = false;
    changed_.notify_all();
  }
}

}  // namespace rocstar
