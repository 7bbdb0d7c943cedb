#include "protocol.h"

#include <cstring>

namespace rocstar {
namespace {

class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view take(size_t count) {
    if (count > rest_.size()) throw ProtocolError("a frame ends before its fields do");
    const std::string_view head = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return head;
  }

  void finish() const {
    if (!rest_.empty()) throw ProtocolError("a frame is longer than its fields");
  }

 private:
  std::string_view rest_;
};

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Writes the header with a length that its destructor fills in.
class FrameWriter {
 public:
  FrameWriter(std::string& to, FrameType type) : to_(to), start_(to.size()) {
    put<uint32_t>(to_, 0);
    put<uint8_t>(to_, static_cast<uint8_t>(type));
  }
  FrameWriter(const FrameWriter&) = delete;
  ~FrameWriter() {
    const auto length = static_cast<uint32_t>(to_.size() - start_ - sizeof(uint32_t));
    std::memcpy(to_.data() + start_, &length, sizeof length);
  }

 private:
  std::string& to_;
  size_t start_;
};

}  // namespace

Request decode_run(std::string_view payload) {
  Cursor in(payload);
  Request request;
  request.id = in.number<uint64_t>();
  request.wall_us = in.number<uint64_t>();
  request.cpu_s = in.number<uint64_t>();
  request.memory_bytes = in.number<uint64_t>();
  request.output_bytes = in.number<uint64_t>();
  request.file_bytes = in.number<uint64_t>();
  const bool has_seed = in.number<uint8_t>() != 0;
  const auto seed = in.number<uint64_t>();
  if (has_seed) request.seed = seed;
  const auto code_length = in.number<uint32_t>();
  const auto stdin_length = in.number<uint32_t>();
  request.code = in.take(code_length);
  request.stdin_bytes = in.take(stdin_length);
  in.finish();
  return request;
}

void append_run(std::string& to, const Request& request) {
  const FrameWriter frame(to, FrameType::kRun);
  for (const uint64_t field :
       {request.id, request.wall_us, request.cpu_s, request.memory_bytes, request.output_bytes, request.file_bytes}) {
    put(to, field);
  }
  put<uint8_t>(to, request.seed.has_value());
  put<uint64_t>(to, request.seed.value_or(0));
  put(to, static_cast<uint32_t>(request.code.size()));
  put(to, static_cast<uint32_t>(request.stdin_bytes.size()));
  to += request.code;
  to += request.stdin_bytes;
}

uint64_t decode_cancel(std::string_view payload) {
  Cursor in(payload);
  const auto id = in.number<uint64_t>();
  in.finish();
  return id;
}

void append_result(std::string& to, const Outcome& outcome) {
  const FrameWriter frame(to, FrameType::kResult);
  put(to, outcome.id);
  put<uint8_t>(to, outcome.signaled);
  put(to, outcome.code);
  put(to, outcome.flags);
  put(to, outcome.wall_us);
  put(to, outcome.cpu_us);
  put(to, outcome.peak_bytes);
  for (const std::string* text : {&outcome.out, &outcome.err, &outcome.value}) {
    put(to, static_cast<uint32_t>(text->size()));
  }
  to += outcome.out;
  to += outcome.err;
  to += outcome.value;
}

void append_failed(std::string& to, uint64_t id, std::string_view reason) {
  const FrameWriter frame(to, FrameType::kFailed);
  put(to, id);
  to += reason;
}

void FrameReader::feed(std::string_view bytes) {
  // Compacting here, not in next(), keeps the views of one batch valid and the copying linear.
  if (start_ > 0) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  buffer_ += bytes;
}

std::optional<Frame> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(start_);
  if (rest.size() < sizeof(uint32_t)) return std::nullopt;
  uint32_t length;
  std::memcpy(&length, rest.data(), sizeof length);
  if (length < 1 || length > kMaxFrameBytes) throw ProtocolError("a frame has an impossible length");
  if (rest.size() < sizeof length + length) return std::nullopt;
  start_ += sizeof length + length;
  const auto type = static_cast<FrameType>(rest[sizeof length]);
  return Frame{type, rest.substr(sizeof length + 1, length - 1)};
}

}  // namespace rocstar
