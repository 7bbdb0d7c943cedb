// Frames on their way to the pool. For each that is sent alone the pool is woken, reads, and sends what comes next: the
// results of an owner who has more waiting than can begin now go together.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rocstar {

// So many results go together, of so many bytes, and none of them waits longer.
inline constexpr uint32_t kMostTogether = 8;
inline constexpr size_t kMostBytesTogether = 64 << 10;
inline constexpr std::chrono::milliseconds kTogether{2};

// Invariant: what is not known to have time is sent at once, and with it everything that was appended before.
class Outbox {
 public:
  using Clock = std::chrono::steady_clock;

  // Where frames are appended, behind those that are not sent yet.
  std::string& frames() { return bytes_; }
  // What was appended from `begin` on has time.
  void may_wait(size_t begin, Clock::time_point now) {
    if (patient_ == 0) since_ = now;
    ++patient_;
    patient_bytes_ += bytes_.size() - begin;
  }
  bool ready(Clock::time_point now) const {
    return !unsent().empty() && (!has_time() || patient_ >= kMostTogether || now >= since_ + kTogether);
  }
  // When what waits is ready at the latest.
  std::optional<Clock::time_point> due() const { return has_time() ? std::optional(since_ + kTogether) : std::nullopt; }
  std::string_view unsent() const { return std::string_view(bytes_).substr(sent_); }
  void drop(size_t count) {
    sent_ += count;
    patient_ = 0;
    patient_bytes_ = 0;
    // Dropping the head only once it is half of all keeps a slow reader's cost linear.
    if (sent_ * 2 < bytes_.size()) return;
    bytes_.erase(0, sent_);
    sent_ = 0;
  }

 private:
  bool has_time() const {
    const size_t unsent = bytes_.size() - sent_;
    return unsent > 0 && unsent == patient_bytes_ && unsent < kMostBytesTogether;
  }

  std::string bytes_;
  size_t sent_ = 0;  // of bytes_
  uint32_t patient_ = 0;
  size_t patient_bytes_ = 0;  // of those
  Clock::time_point since_;   // the first of them
};

}  // namespace rocstar
