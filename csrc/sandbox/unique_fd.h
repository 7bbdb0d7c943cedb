// A file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <array>
#include <cstddef>
#include <utility>

namespace rocstar {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// A few, in no memory but its own: a zygote that takes any from the heap would split a huge page, and copy its table
// for each child.
class FdList {
 public:
  static constexpr size_t kMost = 8;

  // False if there is no room: then it is closed.
  bool add(UniqueFd fd) {
    if (size_ == kMost) return false;
    fds_[size_++] = std::move(fd);
    return true;
  }
  void clear() {
    while (size_ > 0) fds_[--size_].reset();
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  UniqueFd& operator[](size_t index) { return fds_[index]; }
  const UniqueFd& operator[](size_t index) const { return fds_[index]; }
  UniqueFd* begin() { return fds_.data(); }
  UniqueFd* end() { return fds_.data() + size_; }
  const UniqueFd* begin() const { return fds_.data(); }
  const UniqueFd* end() const { return fds_.data() + size_; }

 private:
  std::array<UniqueFd, kMost> fds_;
  size_t size_ = 0;
};

}  // namespace rocstar
