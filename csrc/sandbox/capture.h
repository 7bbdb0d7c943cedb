// Collects the output of a child from one pipe, up to a cap.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "unique_fd.h"

namespace rocstar {

// The shown part of a stream. truncated: bytes are missing.
struct Shown {
  std::string text;
  bool truncated = false;
};

// The first and the last `cap / 2` bytes of a stream. Invariants: never more than `cap` bytes are kept, whatever
// comes; `total()` counts everything; what is shown is at most `cap` bytes and the line that counts what is missing,
// also where bytes that are no text are replaced by longer ones.
class HeadTail {
 public:
  HeadTail() = default;
  explicit HeadTail(uint64_t cap) : cap_(cap), head_cap_(cap - cap / 2) {}

  void append(std::string_view bytes);
  uint64_t total() const { return total_; }
  // Bytes that are kept.
  size_t held() const { return head_.size() + tail_.size(); }
  bool truncated() const { return total_ > cap_; }
  // Valid UTF-8: both parts, and between them, where bytes are missing, a line that counts them.
  Shown shown() const;
  std::string text() const { return shown().text; }
  void clear();
  // All that it has, without a copy: it is as new after that.
  HeadTail take();

 private:
  uint64_t cap_ = 0;
  uint64_t head_cap_ = 0;
  uint64_t total_ = 0;
  std::string head_;
  std::string tail_;       // a ring once it is full
  size_t tail_start_ = 0;  // of the ring
};

class Capture {
 public:
  Capture() = default;
  Capture(UniqueFd pipe, uint64_t cap) : pipe_(std::move(pipe)), kept_(cap) {}

  // Reads once without blocking; closes the pipe at its end. Returns the data, valid until the next call for any pipe.
  std::string_view drain();
  int fd() const { return pipe_.get(); }
  HeadTail& kept() { return kept_; }
  const HeadTail& kept() const { return kept_; }

 private:
  UniqueFd pipe_;
  HeadTail kept_;
};

}  // namespace rocstar
