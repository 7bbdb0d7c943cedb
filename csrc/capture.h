// Collects what a child writes to one pipe, up to a cap.
#pragma once

#include <cstdint>
#include <string>

#include "unique_fd.h"

namespace rocstar {

// Invariant: the head of at most `cap` bytes is kept whatever the child writes; `total()` counts everything.
class Capture {
 public:
  Capture() = default;
  Capture(UniqueFd pipe, uint64_t cap) : pipe_(std::move(pipe)), cap_(cap) {}

  // Reads once without blocking; closes the pipe at its end. True when there was something to read.
  bool drain();

  int fd() const { return pipe_.get(); }
  uint64_t total() const { return total_; }
  bool truncated() const { return total_ > cap_; }

  // The kept head as valid UTF-8, cut at a code point where it was cut.
  std::string text() const;
  // The kept bytes as they came, a few more than the cap when there were more.
  const std::string& raw() const { return kept_; }

 private:
  UniqueFd pipe_;
  uint64_t cap_ = 0;
  uint64_t total_ = 0;
  std::string kept_;
};

}  // namespace rocstar
