// Frames: what is written is what is read, whatever the pieces; what is cut short or forged is refused, never read.
#include "protocol.h"

#include <csignal>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "check.h"

using namespace rocstar;

namespace {

bool refused(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const ProtocolError&) {
    return true;
  }
  return false;
}

std::string payload_of(const std::string& frame) { return frame.substr(5); }

std::string random_text(std::mt19937_64& random, size_t longest) {
  std::string text(random() % (longest + 1), '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

Request random_request(std::mt19937_64& random, FrameType type) {
  Request request{.type = type, .id = random()};
  if (type == FrameType::kCell || type == FrameType::kBranch) request.session = random();
  if (type == FrameType::kCell) request.limits.wall_us = random();
  if (type == FrameType::kCell || type == FrameType::kRun) request.code = random_text(random, 300);
  if (type == FrameType::kRun || type == FrameType::kOpen) {
    request.limits = {random(), random(), random(), random(), random(), random()};
    request.flavour = static_cast<uint8_t>(random());
    if (random() % 2) request.seed = random() % 3;
  }
  if (type == FrameType::kRun) request.stdin_bytes = random_text(random, 100);
  if (type != FrameType::kBranch) request.fetch = random_text(random, 30);
  if (type != FrameType::kBranch) request.wants = static_cast<uint8_t>(random());
  return request;
}

bool same(const Request& a, const Request& b) {
  return a.type == b.type && a.id == b.id && a.session == b.session && a.flavour == b.flavour && a.seed == b.seed &&
         a.code == b.code && a.stdin_bytes == b.stdin_bytes && a.fetch == b.fetch && a.wants == b.wants &&
         std::memcmp(&a.limits, &b.limits, sizeof a.limits) == 0;
}

constexpr FrameType kRequests[] = {FrameType::kRun, FrameType::kOpen, FrameType::kCell, FrameType::kBranch};

void requests_come_back_as_they_were() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    for (const FrameType type : kRequests) {
      const Request request = random_request(random, type);
      std::string bytes;
      append_request(bytes, request);
      CHECK(same(decode_request(type, payload_of(bytes)), request));
    }
  }
}

void every_cut_of_a_request_is_refused() {
  std::mt19937_64 random(2);
  for (const FrameType type : kRequests) {
    std::string bytes;
    append_request(bytes, random_request(random, type));
    const std::string payload = payload_of(bytes);
    for (size_t length = 0; length < payload.size(); ++length) {
      // A copy of the exact length: reading beyond it is caught by the address sanitizer.
      const std::vector<char> cut(payload.begin(), payload.begin() + static_cast<ptrdiff_t>(length));
      CHECK(refused([&] { decode_request(type, {cut.data(), cut.size()}); }));
    }
    CHECK(refused([&] { decode_request(type, payload + "x"); }));
  }
}

void lengths_that_lie_are_refused() {
  std::string bytes;
  append_request(bytes, {.type = FrameType::kRun, .id = 1, .code = "code", .stdin_bytes = "in", .fetch = "f"});
  std::string payload = payload_of(bytes);
  const size_t lengths = payload.size() - 7 - 1 - 12;
  for (const uint32_t lie : {0u, 3u, 5u, 7u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    for (const size_t at : {lengths, lengths + 4, lengths + 8}) {
      std::string forged = payload;
      std::memcpy(forged.data() + at, &lie, sizeof lie);
      CHECK(refused([&] { decode_request(FrameType::kRun, forged); }));
    }
  }
}

void results_come_back_as_they_were() {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    const Outcome outcome{.id = random(),
                          .signaled = random() % 2 == 0,
                          .code = static_cast<int32_t>(random()),
                          .flags = static_cast<uint32_t>(random()),
                          .wall_us = random(),
                          .cpu_us = random(),
                          .peak_bytes = random(),
                          .out = random_text(random, 100),
                          .err = random_text(random, 100),
                          .value = random_text(random, 100)};
    std::string bytes;
    append_result(bytes, outcome, Status::kDenied);
    const std::string payload = payload_of(bytes);
    const ResultView got = decode_result(payload);
    CHECK(got.id == outcome.id && got.status == Status::kDenied && got.signaled == outcome.signaled);
    CHECK(got.code == outcome.code && got.flags == outcome.flags && got.wall_us == outcome.wall_us);
    CHECK(got.cpu_us == outcome.cpu_us && got.peak_bytes == outcome.peak_bytes);
    CHECK(got.out == outcome.out && got.err == outcome.err && got.value == outcome.value);
    const size_t cut = random() % payload.size();
    CHECK(refused([&] { decode_result(std::string_view(payload).substr(0, cut)); }));
    CHECK(refused([&] { decode_result(payload + '\0'); }));
  }
}

void an_id_is_eight_bytes() {
  std::string bytes;
  append_id(bytes, FrameType::kCancel, 77);
  CHECK(decode_id(payload_of(bytes)) == 77);
  CHECK(refused([] { decode_id("1234567"); }) && refused([] { decode_id("123456789"); }));
}

void frames_come_out_whole_whatever_the_pieces() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    std::string stream;
    std::vector<std::pair<FrameType, std::string>> sent;
    for (size_t count = random() % 8; count > 0; --count) {
      sent.emplace_back(static_cast<FrameType>(random() % 256), random_text(random, 200));
      append_json(stream, sent.back().first, sent.back().second);
    }
    FrameReader reader;
    size_t next = 0;
    for (size_t at = 0; at < stream.size();) {
      const size_t piece = 1 + random() % 90;
      reader.feed(std::string_view(stream).substr(at, piece));
      at += piece;
      while (const auto frame = reader.next()) {
        CHECK(next < sent.size() && frame->type == sent[next].first && frame->payload == sent[next].second);
        ++next;
      }
    }
    CHECK(next == sent.size());
  }
}

void a_long_frame_can_be_kept() {
  const std::string text = std::string(kLongFrameBytes, 'x') + "its end";
  std::string stream;
  append_json(stream, FrameType::kHello, "before");
  append_json(stream, FrameType::kHello, text);
  append_json(stream, FrameType::kHello, "after");
  FrameReader reader;
  std::string_view view;
  std::shared_ptr<const std::string> kept;
  std::string others;
  for (size_t at = 0; at < stream.size(); at += 1000) {
    reader.feed(std::string_view(stream).substr(at, 1000));
    while (const auto frame = reader.next()) {
      if (frame->payload.size() < kLongFrameBytes) {
        others += frame->payload;
      } else {
        view = frame->payload;
        kept = reader.keep();
      }
    }
  }
  reader.feed(stream);  // into memory of its own
  CHECK(view == text && kept->size() < stream.size() && others == "beforeafter");
}

void an_impossible_length_is_refused_before_anything_is_kept_for_it() {
  for (const uint32_t length : {0u, kMaxFrameBytes + 1, 0xFFFFFFFFu}) {
    FrameReader reader;
    reader.feed({reinterpret_cast<const char*>(&length), sizeof length});
    CHECK(refused([&] { reader.next(); }));
  }
  FrameReader reader;
  reader.feed({reinterpret_cast<const char*>(&kMaxFrameBytes), sizeof kMaxFrameBytes});
  CHECK(!reader.next());
}

void a_status_follows_from_what_the_parent_knows() {
  const Limits limits{.cpu_s = 2};
  struct Case {
    bool signaled;
    int32_t code;
    uint32_t flags;
    uint64_t cpu_us;
    Status status;
  };
  const Case cases[] = {
      {false, 0, 0, 0, Status::kOk},
      {false, 1, 0, 0, Status::kError},
      {false, kMemoryExit, 0, 0, Status::kMemoryLimit},
      {true, SIGSEGV, 0, 0, Status::kSignaled},
      {true, SIGSYS, 0, 0, Status::kDenied},
      {true, SIGKILL, Outcome::kTimedOut, 0, Status::kTimeout},
      {true, SIGKILL, Outcome::kOutputLimit, 0, Status::kOutputLimit},
      {false, 0, Outcome::kOutputLimit, 0, Status::kOutputLimit},
      {true, SIGKILL, Outcome::kMemoryKilled, 0, Status::kMemoryLimit},
      {true, SIGXCPU, 0, 0, Status::kTimeout},
      {true, SIGKILL, 0, 2'000'000, Status::kTimeout},
      {true, SIGKILL, 0, 1'999'999, Status::kSignaled},  // it killed itself
      {true, SIGSEGV, 0, 3'000'000, Status::kSignaled},
  };
  for (const Case& one : cases) {
    const Outcome outcome{.signaled = one.signaled, .code = one.code, .flags = one.flags, .cpu_us = one.cpu_us};
    CHECK(status_of(outcome, limits) == one.status);
  }
}

// Whoever was killed for want of memory before it had its own has not failed.
void a_kill_below_ones_own_limit_is_nobodys_verdict() {
  const Limits limits{.memory_bytes = 100};
  Outcome outcome{.signaled = true, .code = SIGKILL, .flags = Outcome::kMemoryKilled, .peak_bytes = 99};
  CHECK(killed_below_limit(outcome, limits));
  outcome.peak_bytes = 100;
  CHECK(!killed_below_limit(outcome, limits));
  outcome.flags = 0;
  outcome.peak_bytes = 0;
  CHECK(!killed_below_limit(outcome, limits));
}

// Its reader would take a longer one for an error of the line, and end with everything that it holds.
void a_result_that_fits_no_frame_is_a_failure() {
  std::string bytes;
  append_result(bytes, {.id = 7, .out = std::string(kMaxFrameBytes, 'x')}, Status::kOk);
  FrameReader reader;
  reader.feed(bytes);
  const auto frame = reader.next();
  CHECK(frame && frame->type == FrameType::kFailed && frame->payload[8] == static_cast<char>(Failure::kTooLarge));
}

void a_long_text_is_a_part_of_its_frame() {
  std::string bytes;
  append_request(bytes, {.type = FrameType::kRun, .id = 1, .code = std::string(kLongFrameBytes, 'c'), .fetch = "f\n"});
  FrameReader reader;
  reader.feed(bytes);
  const auto frame = reader.next();
  const auto whole = reader.keep();
  const Request request = decode_request(FrameType::kRun, frame->payload, whole);
  const std::string_view code = request.code;
  CHECK(code == std::string(kLongFrameBytes, 'c') && request.fetch == "f\n");
  CHECK(code.data() > whole->data() && code.data() + code.size() <= whole->data() + whole->size());
  CHECK(decode_request(FrameType::kRun, frame->payload).code == request.code);
}

}  // namespace

int main() {
  a_long_text_is_a_part_of_its_frame();
  requests_come_back_as_they_were();
  every_cut_of_a_request_is_refused();
  lengths_that_lie_are_refused();
  results_come_back_as_they_were();
  a_kill_below_ones_own_limit_is_nobodys_verdict();
  a_result_that_fits_no_frame_is_a_failure();
  an_id_is_eight_bytes();
  frames_come_out_whole_whatever_the_pieces();
  a_long_frame_can_be_kept();
  an_impossible_length_is_refused_before_anything_is_kept_for_it();
  a_status_follows_from_what_the_parent_knows();
}
