// Truncation, UTF-8 repair and framing as the supervisor does them, timed. benchmarks/bench_parse.py builds it.
//
//   frame_results RAW STREAM CAP ROUNDS      RAW: u32 length | bytes, per result. STREAM: gets the frames once
//
// Prints the CPU nanoseconds of each round over all results. Bytes come in pieces of one pipe read, as from a child.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "capture.h"
#include "protocol.h"

namespace {

constexpr size_t kPiece = 64 << 10;

int64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::vector<std::string> read_raw(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> raw;
  for (size_t at = 0; at + sizeof(uint32_t) <= all.size();) {
    uint32_t length;
    std::memcpy(&length, all.data() + at, sizeof length);
    raw.push_back(all.substr(at + sizeof length, length));
    at += sizeof length + length;
  }
  return raw;
}

void frame_one(std::string& stream, uint64_t id, const std::string& raw, uint64_t cap) {
  rocstar::HeadTail out(cap);
  for (size_t at = 0; at < raw.size(); at += kPiece) out.append(std::string_view(raw).substr(at, kPiece));
  rocstar::Outcome outcome{.id = id, .wall_us = 1500, .cpu_us = 900, .peak_bytes = 1 << 20};
  rocstar::Shown shown = out.shown();
  outcome.out = std::move(shown.text);
  if (shown.truncated) outcome.flags |= rocstar::Outcome::kStdoutTruncated;
  append_result(stream, outcome, rocstar::Status::kOk);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::vector<std::string> raw = read_raw(argv[1]);
  const uint64_t cap = std::strtoull(argv[3], nullptr, 10);
  const int rounds = std::atoi(argv[4]);
  std::string stream;
  for (int round = 0; round < rounds; ++round) {
    stream.clear();  // keeps its memory, as the supervisor's outbox does
    const int64_t begun = cpu_ns();
    for (size_t id = 0; id < raw.size(); ++id) frame_one(stream, id, raw[id], cap);
    std::printf("%lld\n", static_cast<long long>(cpu_ns() - begun));
  }
  std::ofstream(argv[2], std::ios::binary) << stream;
  return 0;
}
