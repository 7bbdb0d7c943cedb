// Frames between the pool (Python, rocstar/sandbox/wire.py) and the zygote, over one stream socket.
//
//   frame   = u32 length of the rest | u8 type | payload          native byte order: both ends share a machine
//   RUN     = u64 id, wall_us, cpu_s, memory, output, file | u8 has_seed | u64 seed | u32 code, stdin | bytes
//   CANCEL  = u64 id
//   RESULT  = u64 id | u8 signaled | i32 code | u32 flags | u64 wall_us, cpu_us, peak | u32 out, err, value | bytes
//   FAILED  = u64 id | UTF-8 text                                 the zygote could not run it: no result exists
#pragma once

#include <stddef.h>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rocstar {

enum class FrameType : uint8_t { kRun = 1, kCancel = 2, kResult = 18, kFailed = 19 };

inline constexpr uint32_t kMaxFrameBytes = 256u << 20;

struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Frame {
  FrameType type;
  std::string_view payload;
};

struct Request {
  uint64_t id = 0;
  uint64_t wall_us = 0;
  uint64_t cpu_s = 0;
  uint64_t memory_bytes = 0;
  uint64_t output_bytes = 0;
  uint64_t file_bytes = 0;
  std::optional<uint64_t> seed;
  std::string code;
  std::string stdin_bytes;
};

// What only the parent of a child knows for certain about its end.
struct Outcome {
  enum Flag : uint32_t {
    kTimedOut = 1,
    kOutputLimit = 2,
    kCancelled = 4,
    kStdoutTruncated = 8,
    kStderrTruncated = 16,
    kHasValue = 32,
  };
  uint64_t id = 0;
  bool signaled = false;
  int32_t code = 0;  // exit code, or the signal's number
  uint32_t flags = 0;
  uint64_t wall_us = 0;
  uint64_t cpu_us = 0;
  uint64_t peak_bytes = 0;
  std::string out;
  std::string err;
  std::string value;
};

Request decode_run(std::string_view payload);
uint64_t decode_cancel(std::string_view payload);
void append_result(std::string& to, const Outcome& outcome);
void append_failed(std::string& to, uint64_t id, std::string_view reason);
// For tests: what the pool sends.
void append_run(std::string& to, const Request& request);

// Cuts a byte stream into frames. A view returned by `next` lives until the next call of `next` or `feed`.
class FrameReader {
 public:
  void feed(std::string_view bytes);
  std::optional<Frame> next();

 private:
  std::string buffer_;
  size_t start_ = 0;
};

}  // namespace rocstar
