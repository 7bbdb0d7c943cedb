#include "capture.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "background_thread.h"
#include "utf8.h"

namespace rocstar {
namespace {

// What is long already gets all its room at once: doubling would copy it while all others wait.
void make_room(std::string& part, size_t more, size_t most) {
  if (part.size() + more > std::max(part.capacity(), kLong)) part.reserve(most);
}

}  // namespace

void HeadTail::append(std::string_view bytes) {
  total_ += bytes.size();
  const size_t to_head = std::min<size_t>(head_cap_ - head_.size(), bytes.size());
  make_room(head_, to_head, head_cap_);
  head_.append(bytes.substr(0, to_head));
  bytes.remove_prefix(to_head);
  const size_t room = cap_ - head_cap_;
  if (bytes.empty() || room == 0) return;
  if (bytes.size() >= room) {
    tail_ = bytes.substr(bytes.size() - room);
    tail_start_ = 0;
    return;
  }
  const size_t to_end = std::min(room - tail_.size(), bytes.size());
  make_room(tail_, to_end, room);
  tail_.append(bytes.substr(0, to_end));
  bytes.remove_prefix(to_end);
  for (size_t left = bytes.size(); left > 0;) {  // full: overwrite the oldest, at most once around
    const size_t run = std::min(left, room - tail_start_);
    std::copy_n(bytes.data() + bytes.size() - left, run, tail_.data() + tail_start_);
    tail_start_ = (tail_start_ + run) % room;
    left -= run;
  }
}

Shown HeadTail::shown() const {
  const std::string tail = tail_.substr(tail_start_) + tail_.substr(0, tail_start_);
  std::string all;
  std::string_view head = head_, end = tail;
  if (truncated()) {
    if (cap_ == 0) return {{}, true};
    head = cut_utf8(head);
    end = skip_partial_utf8(end);
  } else {
    all = head_ + tail;
    if (auto whole = repair_within(all, cap_)) return {std::move(*whole), false};
    head = fitting_prefix(all, head_cap_);
    end = std::string_view(all).substr(head.size());
  }
  std::string text = repair_prefix(head, head_cap_);
  const std::string last = repair_suffix(end, cap_ - head_cap_);
  const std::string mark = "\n... [" + std::to_string(total_ - head.size() - end.size()) + " bytes cut] ...\n";
  text.reserve(text.size() + mark.size() + last.size());  // growing would take twice that
  text += mark;
  text += last;
  return {std::move(text), true};
}

void HeadTail::clear() {
  total_ = 0;
  head_.clear();
  tail_.clear();
  tail_start_ = 0;
}

HeadTail HeadTail::take() { return std::exchange(*this, HeadTail(cap_)); }

std::string_view Capture::drain() {
  // One pipe holds 64 KiB: a child that writes without end gets one buffer per wake-up, not the reactor.
  static char buffer[64 << 10];
  if (!pipe_) return {};
  const ssize_t got = read(pipe_.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got <= 0) {
    pipe_.reset();
    return {};
  }
  const std::string_view read{buffer, static_cast<size_t>(got)};
  kept_.append(read);
  return read;
}

}  // namespace rocstar
