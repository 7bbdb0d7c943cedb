#include "check.h"
#include "protocol.h"

using namespace rocstar;

namespace {

Request sample() {
  Request request;
  request.id = 7;
  request.wall_us = 4'000'000;
  request.cpu_s = 5;
  request.memory_bytes = 1ull << 40;
  request.output_bytes = 99;
  request.file_bytes = 3;
  request.seed = 0;
  request.code = std::string("print(1)\0", 9);
  request.stdin_bytes = "in";
  return request;
}

template <typename Function>
bool throws(Function function) {
  try {
    function();
  } catch (const ProtocolError&) {
    return true;
  }
  return false;
}

void a_request_survives_the_wire() {
  std::string bytes;
  append_run(bytes, sample());
  FrameReader reader;
  reader.feed(bytes);
  const auto frame = reader.next();
  CHECK(frame && frame->type == FrameType::kRun);
  const Request got = decode_run(frame->payload);
  CHECK(got.id == 7 && got.wall_us == 4'000'000 && got.cpu_s == 5 && got.memory_bytes == 1ull << 40);
  CHECK(got.output_bytes == 99 && got.file_bytes == 3 && got.seed == 0u);
  CHECK(got.code == sample().code && got.stdin_bytes == "in");
  CHECK(!reader.next());
}

void frames_come_out_whole_whatever_the_pieces() {
  std::string bytes;
  for (int i = 0; i < 3; ++i) append_run(bytes, sample());
  append_failed(bytes, 5, "why");
  for (size_t piece = 1; piece < bytes.size(); ++piece) {
    FrameReader reader;
    int frames = 0;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      reader.feed(std::string_view(bytes).substr(at, piece));
      while (const auto frame = reader.next()) {
        ++frames;
        CHECK(frame->type == (frames == 4 ? FrameType::kFailed : FrameType::kRun));
      }
    }
    CHECK(frames == 4);
  }
}

void broken_frames_are_refused() {
  std::string bytes;
  append_run(bytes, sample());
  const std::string_view payload = std::string_view(bytes).substr(5);
  for (size_t length = 0; length < payload.size(); ++length) {
    CHECK(throws([&] { decode_run(payload.substr(0, length)); }));
  }
  CHECK(throws([&] { decode_run(std::string(payload) + "x"); }));
  CHECK(throws([] { decode_cancel("1234567"); }));
  CHECK(throws([] {
    FrameReader reader;
    reader.feed({"\0\0\0\0", 4});
    reader.next();
  }));
  CHECK(throws([] {
    FrameReader reader;
    reader.feed("\xFF\xFF\xFF\xFF");
    reader.next();
  }));
}

}  // namespace

int main() {
  a_request_survives_the_wire();
  frames_come_out_whole_whatever_the_pieces();
  broken_frames_are_refused();
}
