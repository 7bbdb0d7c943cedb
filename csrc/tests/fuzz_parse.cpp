// Fuzz target for what reads bytes of others: framing, decoding, UTF-8 repair, head and tail. Its first byte chooses
// how the rest is cut into pieces. libFuzzer drives it (clang, -DROCSTAR_LIBFUZZER=ON); without it, the driver below
// mutates inputs of its own, seeded: `fuzz_parse --seconds N [--seed N]`.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "capture.h"
#include "check.h"
#include "protocol.h"
#include "utf8.h"

using namespace rocstar;

namespace {

using Frames = std::vector<std::pair<FrameType, std::string>>;

// All frames of a stream that comes in pieces of `piece` bytes, and whether it ended in a refusal.
std::pair<Frames, bool> frames_of(std::string_view stream, size_t piece) {
  FrameReader reader;
  Frames frames;
  try {
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(stream.substr(at, piece));
      while (const auto frame = reader.next()) frames.emplace_back(frame->type, std::string(frame->payload));
    }
  } catch (const ProtocolError&) {
    return {frames, true};
  }
  return {frames, false};
}

void requests_are_refused_or_come_back(const std::string& payload) {
  for (const FrameType type : {FrameType::kRun, FrameType::kOpen, FrameType::kCell, FrameType::kBranch}) {
    std::string once, twice;
    try {
      append_request(once, decode_request(type, payload));
    } catch (const ProtocolError&) {
      continue;
    }
    CHECK(once.size() == payload.size() + 5);
    // Only a seed that is not there, or a "there" that is not 1, comes back differently.
    const bool has_seed = type == FrameType::kRun || type == FrameType::kOpen;
    CHECK(has_seed || once.compare(5, std::string::npos, payload) == 0);
    append_request(twice, decode_request(type, once.substr(5)));
    CHECK(once == twice);
  }
}

void a_result_is_refused_or_comes_back(const std::string& payload) {
  try {
    const ResultView view = decode_result(payload);
    Outcome outcome{.id = view.id,
                    .signaled = view.signaled,
                    .code = view.code,
                    .flags = view.flags,
                    .wall_us = view.wall_us,
                    .cpu_us = view.cpu_us,
                    .peak_bytes = view.peak_bytes,
                    .out = std::string(view.out),
                    .err = std::string(view.err),
                    .value = std::string(view.value)};
    std::string again;
    append_result(again, outcome, view.status);
    CHECK(again.size() == payload.size() + 5);
    const std::string body = again.substr(5);
    const ResultView second = decode_result(body);
    CHECK(second.out == view.out && second.err == view.err && second.value == view.value && second.id == view.id);
  } catch (const ProtocolError&) {
  }
}

bool is_valid(std::string_view text) { return repair_utf8(text) == text; }

void text_is_repaired(std::string_view bytes) {
  const std::string repaired = repair_utf8(bytes);
  CHECK(is_valid(repaired) && repaired.size() <= 3 * bytes.size());
  CHECK(cut_utf8(bytes).size() <= bytes.size() && bytes.starts_with(cut_utf8(bytes)));
  CHECK(bytes.ends_with(skip_partial_utf8(bytes)));
  if (is_valid(bytes)) CHECK(cut_utf8(bytes) == bytes && skip_partial_utf8(bytes) == bytes);
}

void head_and_tail_are_bounded_and_whole(std::string_view bytes, size_t cap, size_t piece) {
  HeadTail kept(cap), at_once(cap);
  for (size_t at = 0; at < bytes.size(); at += piece) kept.append(bytes.substr(at, piece));
  at_once.append(bytes);
  const std::string text = kept.text();
  CHECK(is_valid(text) && text == at_once.text() && kept.total() == bytes.size());
  CHECK(text.size() <= cap + 64 && (kept.shown().truncated || text == repair_utf8(bytes)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = 1 + data[0] % 97, cap = data[0] / 3;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto whole = frames_of(bytes, bytes.size() + 1), pieces = frames_of(bytes, piece);
  CHECK(whole.first == pieces.first && whole.second == pieces.second);
  for (const auto& [type, payload] : whole.first) {
    try {
      decode_id(payload);
    } catch (const ProtocolError&) {
    }
    requests_are_refused_or_come_back(payload);
    a_result_is_refused_or_comes_back(payload);
  }
  requests_are_refused_or_come_back(std::string(bytes));
  a_result_is_refused_or_comes_back(std::string(bytes));
  text_is_repaired(bytes);
  head_and_tail_are_bounded_and_whole(bytes, cap, piece);
  return 0;
}

#ifndef ROCSTAR_LIBFUZZER
namespace {

using Random = std::mt19937_64;

std::string any_bytes(Random& random, size_t most) {
  static const char* const kParts[] = {"\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xED\xA0\x80", "\xC3", "\x80", "\xFF", "a",
                                       "\n",           "print(1)",         "\xF4\x90",     "\0"};
  std::string bytes;
  for (size_t count = random() % (most + 1); count > 0; --count) {
    bytes +=
        random() % 3 ? std::string(kParts[random() % std::size(kParts)]) : std::string(1, static_cast<char>(random()));
  }
  return bytes;
}

std::string any_frame(Random& random) {
  std::string frame;
  switch (random() % 5) {
    case 0:
      append_request(frame, {.type = FrameType::kRun,
                             .id = random(),
                             .seed = random(),
                             .code = any_bytes(random, 30),
                             .stdin_bytes = any_bytes(random, 9)});
      break;
    case 1:
      append_request(frame, {.type = FrameType::kCell, .id = random(), .session = 3, .code = any_bytes(random, 30)});
      break;
    case 2:
      append_request(frame, {.type = FrameType::kBranch, .id = random(), .session = random()});
      break;
    case 3:
      append_result(
          frame, {.id = random(), .code = 1, .out = any_bytes(random, 30), .err = any_bytes(random, 5), .value = "v"},
          Status::kError);
      break;
    default:
      append_failed(frame, random(), Failure::kFull, any_bytes(random, 20));
  }
  return frame;
}

void mutate(Random& random, std::string& input) {
  for (size_t count = random() % 4; count > 0 && !input.empty(); --count) {
    const size_t at = random() % input.size();
    switch (random() % 5) {
      case 0:
        input[at] = static_cast<char>(random());
        break;
      case 1:
        input.erase(at, 1 + random() % 9);
        break;
      case 2:
        input.insert(at, any_bytes(random, 6));
        break;
      case 3:
        input.resize(at);
        break;
      default: {  // a length that lies, anywhere
        static constexpr uint32_t kLies[] = {0,         1, 5, 0x7F, 0x80, 0xFFFF, kMaxFrameBytes, kMaxFrameBytes + 1,
                                             0xFFFFFFFF};
        const uint32_t lie = kLies[random() % std::size(kLies)];
        std::memcpy(input.data() + at, &lie, std::min(sizeof lie, input.size() - at));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  long seconds = 10;
  uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atol(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  Random random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t runs = 0;
  for (; runs % 1024 != 0 || std::chrono::steady_clock::now() < end; ++runs) {
    std::string input(1, static_cast<char>(random()));
    if (random() % 3 == 0) {
      input += any_bytes(random, 200);
    } else {
      for (size_t count = random() % 5; count > 0; --count) input += any_frame(random);
    }
    mutate(random, input);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("%llu inputs, seed %llu: no finding\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
}
#endif
