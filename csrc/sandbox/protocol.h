// Frames between the pool (Python, rocstar/sandbox/wire.py) and the supervisor, over one stream socket.
//
//   frame   = u32 length of the rest | u8 type | payload          native byte order: both ends share a machine
//   limits  = u64 wall_us, cpu_s, memory, output, file, files
//   RUN     = u64 id | limits | u8 flavour | u8 has_seed | u64 seed | u64 lane | u32 weight, code, stdin, fetch
//             | u8 wants | bytes
//   OPEN    = as RUN, without code: starts a session, whose number is this id
//   CELL    = u64 id, session, wall_us | u32 code, fetch | u8 wants | bytes
//   BRANCH  = u64 id, session                                     starts a session from the state of another
//   CANCEL  = u64 id                  CLOSE = u64 session
//   PING    = u64 number                                          answered at once by PONG with the same number
//   RESULT  = u64 id | u8 status | u8 signaled | i32 code | u32 flags | u64 wall_us, cpu_us, peak
//             | u32 out, err, value | bytes                       all three texts are valid UTF-8
//   OUTPUT  = u64 id | u8 stream | bytes                          written just now, for who wants to follow
//   FILE    = u64 id | u8 name | bytes of the name | bytes          a piece of a file; a RESULT follows the last
//   OPENED  = u64 id                                              answers OPEN and BRANCH
//   FAILED  = u64 id | u8 why | UTF-8 text                        no result exists: it was not the program's doing
//   GONE    = u64 session | u8 why | UTF-8 text                   a session ended; the text: how, when it died
//   ZYGOTE  = u8 flavour | u64 pid                                a zygote is ready, the first or a replacement
//   HELLO, FATAL = JSON                                           the first frame: ready, or why not
#pragma once

#include <stddef.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "unique_fd.h"

namespace rocstar {

enum class FrameType : uint8_t {
  kRun = 1,
  kCancel = 2,
  kOpen = 3,
  kCell = 4,
  kBranch = 5,
  kClose = 6,
  kPing = 7,
  kHello = 16,
  kFatal = 17,
  kResult = 18,
  kFailed = 19,
  kOpened = 20,
  kGone = 21,
  kZygote = 22,
  kPong = 23,
  kOutput = 24,
  kFile = 25,
};

inline constexpr uint32_t kMaxFrameBytes = 256u << 20;

struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Frame {
  FrameType type;
  std::string_view payload;
};

struct Limits {
  uint64_t wall_us = 0;
  uint64_t cpu_s = 0;
  uint64_t memory_bytes = 0;
  uint64_t output_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t files = 0;
};

// Set in the number of a lane that is an owner's.
inline constexpr uint64_t kOwnersLane = uint64_t{1} << 63;

struct Compiled;

// A text of a request: of its own, or a part of a long frame, which is not copied and lives as long.
class Text {
 public:
  Text() = default;
  Text(std::string own) : whole_(own.empty() ? nullptr : std::make_shared<const std::string>(std::move(own))) {
    if (whole_) part_ = *whole_;
  }
  Text(const char* own) : Text(std::string(own)) {}
  Text(std::shared_ptr<const std::string> whole, std::string_view part) : whole_(std::move(whole)), part_(part) {}

  operator std::string_view() const { return part_; }
  size_t size() const { return part_.size(); }
  bool empty() const { return part_.empty(); }
  bool operator==(const Text& other) const { return part_ == other.part_; }

 private:
  std::shared_ptr<const std::string> whole_;
  std::string_view part_;
};

// Optional parts of an answer: streamed output and displays.
inline constexpr uint8_t kWantsOutput = 1, kWantsDisplays = 2;

// A request of the pool: a program, a session, a cell of a session, or a branch of one.
struct Request {
  FrameType type = FrameType::kRun;
  uint64_t id = 0;
  uint64_t session = 0;  // of kCell and kBranch
  Limits limits;         // of kCell only wall_us
  uint8_t flavour = 0;
  uint64_t lane = 0;    // whose it is: lanes share the places
  uint32_t weight = 1;  // of the lane
  std::optional<uint64_t> seed;
  Text code;
  Text stdin_bytes;
  std::string fetch;  // names of files that the answer is to have, each with a line's end
  uint8_t wants = 0;
  uint32_t attempts = 0;               // lost with their zygotes; not sent
  std::shared_ptr<Compiled> compiled;  // a C++ program that is ready to start; not sent
  std::shared_ptr<UniqueFd> input;     // standard input that was written beforehand, for it is long; not sent
};

// As rocstar.sandbox.types.Status, in its order.
enum class Status : uint8_t { kOk, kError, kSignaled, kTimeout, kMemoryLimit, kOutputLimit, kDenied };

// The facts about a child's end that only its parent knows for certain.
struct Outcome {
  enum Flag : uint32_t {
    kTimedOut = 1,
    kOutputLimit = 2,
    kCancelled = 4,
    kStdoutTruncated = 8,
    kStderrTruncated = 16,
    kHasValue = 32,
    kMemoryKilled = 64,
    kNoScratch = 128,  // it was taken away because all together had too much in their scratch directories
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

// The kernel killed it for want of memory before it had what it may have: others took too much, or we let them.
bool killed_below_limit(const Outcome& outcome, const Limits& limits);

// From how a child ended and from what its parent did to it; nothing that the child wrote counts.
Status status_of(const Outcome& outcome, const Limits& limits);

// An exit code for an uncaught MemoryError. A program that forges it is still counted as failed.
inline constexpr int kMemoryExit = 86;

enum class Failure : uint8_t {
  kChildStart = 1,
  kCancelled = 2,
  kSessionLost = 3,
  kFull = 4,
  kCannotBranch = 5,
  kNodeMemory = 6,   // the kernel took it for want of memory, and it had not yet what it was allowed
  kTooLarge = 7,     // its output does not fit a frame
  kNodeScratch = 8,  // it had most of what all together had too much of, in their scratch directories
  kZygoteStart = 9   // its flavour cannot be started any more; the text is JSON, as FATAL has it
};
enum class GoneWhy : uint8_t { kDied = 1, kEvicted = 2, kExpired = 3, kClosed = 4 };

// Long texts are parts of `whole`, where the payload is one of it.
Request decode_request(FrameType type, std::string_view payload, const std::shared_ptr<const std::string>& whole = {});
uint64_t decode_id(std::string_view payload);
// A FAILED frame instead where the texts do not fit one: a reader would take its length for an error of ours.
void append_result(std::string& to, const Outcome& outcome, Status status);
void append_failed(std::string& to, uint64_t id, Failure why, std::string_view reason);
void append_opened(std::string& to, uint64_t id);
void append_gone(std::string& to, uint64_t session, GoneWhy why, std::string_view how = {});
void append_zygote(std::string& to, uint8_t flavour, uint64_t pid);
void append_json(std::string& to, FrameType type, std::string_view json);
void append_output(std::string& to, uint64_t id, uint8_t stream, std::string_view bytes);
void append_file(std::string& to, uint64_t id, std::string_view name, std::string_view bytes);
// For tests: the frames of the pool.
void append_request(std::string& to, const Request& request);
void append_id(std::string& to, FrameType type, uint64_t id);

// The fields of a RESULT as views into the frame.
struct ResultView {
  uint64_t id;
  Status status;
  bool signaled;
  int32_t code;
  uint32_t flags;
  uint64_t wall_us, cpu_us, peak_bytes;
  std::string_view out, err, value;
};
ResultView decode_result(std::string_view payload);

// The size from which a frame is read into its own memory, which its receiver may keep.
inline constexpr uint32_t kLongFrameBytes = 1u << 20;

// Cuts a byte stream into frames. A view returned by `next` lives until the next call of `next` or `feed`.
class FrameReader {
 public:
  void feed(std::string_view bytes);
  std::optional<Frame> next();
  // The memory of a frame of kLongFrameBytes or more that `next` has just returned: its views live as long.
  std::shared_ptr<const std::string> keep();

 private:
  std::string buffer_;
  size_t start_ = 0;
};

}  // namespace rocstar
