// Frames on their way to the pool. For each that is sent alone the pool is woken, reads, and sends what comes next: the
// results of an owner who has more waiting than can begin now go together.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace rocstar {

// So many results go together, of so many bytes, and none of them waits longer.
inline constexpr uint32_t kMostTogether = 8;
inline constexpr size_t kMostBytesTogether = 64 << 10;
inline constexpr std::chrono::milliseconds kTogether{2};
// A part that has so many bytes is appended to no more.
inline constexpr size_t kPartBytes = 256 << 10;

// Invariants: what is not known to have time is sent at once, and with it everything that was appended before; a part
// is neither copied nor moved in memory once another follows.
class Outbox {
 public:
  using Clock = std::chrono::steady_clock;

  // Where frames are appended, behind those that are not sent yet: until the next call.
  std::string& frames() {
    if (parts_.back().size() >= kPartBytes) add_part({});
    return parts_.back();
  }
  // Whole frames, behind those, without a copy of them.
  void append(std::string frames) {
    if (parts_.back().empty()) {
      parts_.back() = std::move(frames);
    } else {
      add_part(std::move(frames));
    }
  }
  // Of all that is not sent yet.
  size_t size() const { return before_last_ + parts_.back().size() - sent_; }
  // What was appended since there were `size` bytes has time.
  void may_wait(size_t size_before, Clock::time_point now) {
    if (patient_ == 0) since_ = now;
    ++patient_;
    patient_bytes_ += size() - size_before;
  }
  bool ready(Clock::time_point now) const {
    return size() > 0 && (!has_time() || patient_ >= kMostTogether || now >= since_ + kTogether);
  }
  // When what waits is ready at the latest.
  std::optional<Clock::time_point> due() const { return has_time() ? std::optional(since_ + kTogether) : std::nullopt; }
  // The first of it, which is not empty unless all is sent.
  std::string_view unsent() const { return std::string_view(parts_.front()).substr(sent_); }
  // Those bytes of `unsent` are sent. A part that ends with them is nobody's any more: large ones take long to free.
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
