#include "protocol.h"

#include <algorithm>
#include <csignal>
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

bool killed_below_limit(const Outcome& outcome, const Limits& limits) {
  return (outcome.flags & Outcome::kMemoryKilled) && outcome.peak_bytes < limits.memory_bytes;
}

Status status_of(const Outcome& outcome, const Limits& limits) {
  if (outcome.flags & Outcome::kOutputLimit) return Status::kOutputLimit;
  // A session that stopped in time when it was interrupted has exited or answered, and was late all the same.
  if (outcome.flags & Outcome::kTimedOut) return Status::kTimeout;
  if (!outcome.signaled) {
    if (outcome.code == 0) return Status::kOk;
    return outcome.code == kMemoryExit ? Status::kMemoryLimit : Status::kError;
  }
  // SIGKILL a second after SIGXCPU is how the kernel ends a program that ignores the first.
  const bool over_cpu = outcome.cpu_us >= limits.cpu_s * 1'000'000;
  if (outcome.code == SIGXCPU || (outcome.code == SIGKILL && over_cpu)) return Status::kTimeout;
  if (outcome.flags & Outcome::kMemoryKilled) return Status::kMemoryLimit;
  return outcome.code == SIGSYS ? Status::kDenied : Status::kSignaled;
}

Request decode_request(FrameType type, std::string_view payload, const std::shared_ptr<const std::string>& whole) {
  Cursor in(payload);
  const auto text = [&whole](std::string_view part) {
    return whole && part.size() >= kLongFrameBytes ? Text(whole, part) : Text(std::string(part));
  };
  Request request{.type = type, .id = in.number<uint64_t>()};
  if (type == FrameType::kBranch) {
    request.session = in.number<uint64_t>();
  } else if (type == FrameType::kCell) {
    request.session = in.number<uint64_t>();
    request.limits.wall_us = in.number<uint64_t>();
    const auto code_length = in.number<uint32_t>();
    const auto fetch_length = in.number<uint32_t>();
    request.wants = in.number<uint8_t>();
    request.code = text(in.take(code_length));
    request.fetch = in.take(fetch_length);
  } else {
    Limits& limits = request.limits;
    for (uint64_t* field : {&limits.wall_us, &limits.cpu_s, &limits.memory_bytes, &limits.output_bytes,
                            &limits.file_bytes, &limits.files}) {
      *field = in.number<uint64_t>();
    }
    request.flavour = in.number<uint8_t>();
    const bool has_seed = in.number<uint8_t>() != 0;
    const auto seed = in.number<uint64_t>();
    if (has_seed) request.seed = seed;
    request.lane = in.number<uint64_t>();
    request.weight = std::max(1u, in.number<uint32_t>());
    const auto code_length = in.number<uint32_t>();
    const auto stdin_length = in.number<uint32_t>();
    const auto fetch_length = in.number<uint32_t>();
    request.wants = in.number<uint8_t>();
    request.code = text(in.take(code_length));
    request.stdin_bytes = text(in.take(stdin_length));
    request.fetch = in.take(fetch_length);
  }
  in.finish();
  return request;
}

void append_request(std::string& to, const Request& request) {
  const FrameWriter frame(to, request.type);
  put(to, request.id);
  if (request.type == FrameType::kBranch || request.type == FrameType::kCell) {
    put(to, request.session);
    if (request.type == FrameType::kBranch) return;
    put(to, request.limits.wall_us);
    put(to, static_cast<uint32_t>(request.code.size()));
    put(to, static_cast<uint32_t>(request.fetch.size()));
    put(to, request.wants);
    to += request.code;
    to += request.fetch;
    return;
  }
  const Limits& limits = request.limits;
  for (const uint64_t field :
       {limits.wall_us, limits.cpu_s, limits.memory_bytes, limits.output_bytes, limits.file_bytes, limits.files}) {
    put(to, field);
  }
  put(to, request.flavour);
  put<uint8_t>(to, request.seed.has_value());
  put<uint64_t>(to, request.seed.value_or(0));
  put(to, request.lane);
  put(to, request.weight);
  put(to, static_cast<uint32_t>(request.code.size()));
  put(to, static_cast<uint32_t>(request.stdin_bytes.size()));
  put(to, static_cast<uint32_t>(request.fetch.size()));
  put(to, request.wants);
  to += request.code;
  to += request.stdin_bytes;
  to += request.fetch;
}

uint64_t decode_id(std::string_view payload) {
  Cursor in(payload);
  const auto id = in.number<uint64_t>();
  in.finish();
  return id;
}

void append_id(std::string& to, FrameType type, uint64_t id) {
  const FrameWriter frame(to, type);
  put(to, id);
}

void append_result(std::string& to, const Outcome& outcome, Status status) {
  constexpr size_t kHead = 128;
  if (outcome.out.size() + outcome.err.size() + outcome.value.size() + kHead > kMaxFrameBytes) {
    return append_failed(to, outcome.id, Failure::kTooLarge, "the program wrote more than one answer can hold");
  }
  const FrameWriter frame(to, FrameType::kResult);
  put(to, outcome.id);
  put(to, static_cast<uint8_t>(status));
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

ResultView decode_result(std::string_view payload) {
  Cursor in(payload);
  ResultView result{};
  result.id = in.number<uint64_t>();
  result.status = static_cast<Status>(in.number<uint8_t>());
  result.signaled = in.number<uint8_t>() != 0;
  result.code = in.number<int32_t>();
  result.flags = in.number<uint32_t>();
  result.wall_us = in.number<uint64_t>();
  result.cpu_us = in.number<uint64_t>();
  result.peak_bytes = in.number<uint64_t>();
  const auto out_length = in.number<uint32_t>();
  const auto err_length = in.number<uint32_t>();
  const auto value_length = in.number<uint32_t>();
  result.out = in.take(out_length);
  result.err = in.take(err_length);
  result.value = in.take(value_length);
  in.finish();
  return result;
}

void append_failed(std::string& to, uint64_t id, Failure why, std::string_view reason) {
  const FrameWriter frame(to, FrameType::kFailed);
  put(to, id);
  put(to, static_cast<uint8_t>(why));
  to += reason;
}

void append_opened(std::string& to, uint64_t id) { append_id(to, FrameType::kOpened, id); }

void append_gone(std::string& to, uint64_t session, GoneWhy why, std::string_view how) {
  const FrameWriter frame(to, FrameType::kGone);
  put(to, session);
  put(to, static_cast<uint8_t>(why));
  to += how;
}

void append_zygote(std::string& to, uint8_t flavour, uint64_t pid) {
  const FrameWriter frame(to, FrameType::kZygote);
  put(to, flavour);
  put(to, pid);
}

void append_json(std::string& to, FrameType type, std::string_view json) {
  const FrameWriter frame(to, type);
  to += json;
}

void append_output(std::string& to, uint64_t id, uint8_t stream, std::string_view bytes) {
  const FrameWriter frame(to, FrameType::kOutput);
  put(to, id);
  put(to, stream);
  to += bytes;
}

void append_file(std::string& to, uint64_t id, std::string_view name, std::string_view bytes) {
  const FrameWriter frame(to, FrameType::kFile);
  put(to, id);
  put(to, static_cast<uint8_t>(name.size()));
  to += name;
  to += bytes;
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
  if (rest.size() < sizeof length + length) {
    // At once, or what has come of it would be copied again and again while it grows.
    if (length >= kLongFrameBytes) buffer_.reserve(start_ + sizeof length + length);
    return std::nullopt;
  }
  start_ += sizeof length + length;
  const auto type = static_cast<FrameType>(rest[sizeof length]);
  return Frame{type, rest.substr(sizeof length + 1, length - 1)};
}

std::shared_ptr<const std::string> FrameReader::keep() {
  std::string rest = buffer_.substr(start_);
  auto kept = std::make_shared<const std::string>(std::move(buffer_));  // too long to be moved within the object
  buffer_ = std::move(rest);
  start_ = 0;
  return kept;
}

}  // namespace rocstar
