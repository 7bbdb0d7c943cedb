#include "capture.h"

#include <algorithm>
#include <cerrno>

#include "utf8.h"

namespace rocstar {

bool Capture::drain() {
  // One pipe holds 64 KiB: a child that writes without end gets one buffer per wake-up, not the reactor.
  static char buffer[64 << 10];
  if (!pipe_) return false;
  const ssize_t got = read(pipe_.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    pipe_.reset();
    return false;
  }
  total_ += static_cast<uint64_t>(got);
  // A few bytes beyond the cap are kept, so that the cut can see whether it splits a code point.
  const uint64_t room = cap_ + 4 - std::min<uint64_t>(kept_.size(), cap_ + 4);
  kept_.append(buffer, std::min<uint64_t>(room, static_cast<uint64_t>(got)));
  return true;
}

std::string Capture::text() const { return repair_utf8(cut_utf8(kept_, cap_)); }

}  // namespace rocstar
