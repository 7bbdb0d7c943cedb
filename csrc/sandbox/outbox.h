// Frames to be sent to the pool. Each write wakes the pool, so the results of an owner with many waiting calls are sent
// together.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace rocstar {

// The limits of results that are sent together: their number, bytes, and delay.
inline constexpr uint32_t kMostTogether = 8;
inline constexpr size_t kMostBytesTogether = 64 << 10;
inline constexpr std::chrono::milliseconds kTogether{2};
// The size from which a part is not appended to.
inline constexpr size_t kPartBytes = 256 << 10;

// Invariants: frames that may not wait are sent immediately, with all frames before them; a part is neither copied nor
// moved in memory once another follows.
class Outbox {
 public:
  using Clock = std::chrono::steady_clock;

  // The buffer to which frames are appended; valid until the next call.
  std::string& frames() {
    if (parts_.back().size() >= kPartBytes) add_part({});
    return parts_.back();
  }
  // Appends complete frames without copying them.
  void append(std::string frames) {
    if (parts_.back().empty()) {
      parts_.back() = std::move(frames);
    } else {
      add_part(std::move(frames));
    }
  }
  // The number of unsent bytes.
  size_t size() const { return before_last_ + parts_.back().size() - sent_; }
  // Marks the bytes that were appended since there were `size_before` as able to wait.
  void may_wait(size_t size_before, Clock::time_point now) {
    if (patient_ == 0) since_ = now;
    ++patient_;
    patient_bytes_ += size() - size_before;
  }
  bool ready(Clock::time_point now) const {
    return size() > 0 && (!has_time() || patient_ >= kMostTogether || now >= since_ + kTogether);
  }
  // The time at which waiting bytes must be sent.
  std::optional<Clock::time_point> due() const { return has_time() ? std::optional(since_ + kTogether) : std::nullopt; }
  // The first unsent part; empty only if all is sent.
  std::string_view unsent() const { return std::string_view(parts_.front()).substr(sent_); }
  // Removes `count` sent bytes. Returns a part that ends with them, because large ones take long to free.
  std::string drop(size_t count) {
    sent_ += count;
    patient_ = 0;
    patient_bytes_ = 0;
    if (sent_ < parts_.front().size()) return {};
    sent_ = 0;
    if (parts_.size() == 1 && parts_.front().size() < 2 * kPartBytes) {
      parts_.front().clear();  // its memory serves the next ones
      return {};
    }
    std::string spent = std::move(parts_.front());
    if (parts_.size() > 1) {
      before_last_ -= spent.size();
      parts_.pop_front();
    } else {
      parts_.front() = {};
    }
    return spent;
  }

 private:
  void add_part(std::string part) {
    before_last_ += parts_.back().size();
    parts_.push_back(std::move(part));
  }
  bool has_time() const { return size() > 0 && size() == patient_bytes_ && size() < kMostBytesTogether; }

  std::deque<std::string> parts_{1};
  size_t before_last_ = 0;  // bytes of all but the last
  size_t sent_ = 0;         // of the first
  uint32_t patient_ = 0;
  size_t patient_bytes_ = 0;  // of those
  Clock::time_point since_;   // the first of them
};

}  // namespace rocstar
