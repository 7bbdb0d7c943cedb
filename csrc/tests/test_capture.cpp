#include "capture.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <random>
#include <string>

#include "check.h"
#include "utf8.h"

using namespace rocstar;

static size_t allocated = 0;

void* operator new(size_t bytes) {
  allocated += bytes;
  if (void* const made = std::malloc(bytes)) return made;
  throw std::bad_alloc();
}
void operator delete(void* bytes) noexcept { std::free(bytes); }
void operator delete(void* bytes, size_t) noexcept { std::free(bytes); }

namespace {

// HeadTail as its header describes it, with everything kept.
struct Model {
  uint64_t cap;
  std::string all;

  std::string text() const {
    const size_t tail_cap = cap / 2;
    std::string_view start = all, end = all;
    if (all.size() <= cap) {
      if (repair_utf8(all).size() <= cap) return repair_utf8(all);
    } else {
      if (cap == 0) return {};
      start = cut_utf8(std::string_view(all).substr(0, cap - tail_cap));
      end = skip_partial_utf8(std::string_view(all).substr(all.size() - tail_cap));
    }
    const std::string head(fitting_prefix(start, cap - tail_cap));
    if (all.size() <= cap) end.remove_prefix(head.size());
    const std::string tail(fitting_suffix(end, tail_cap));
    const std::string missing = std::to_string(all.size() - head.size() - tail.size());
    return repair_utf8(head) + "\n... [" + missing + " bytes cut] ...\n" + repair_utf8(tail);
  }
};

std::string random_bytes(std::mt19937_64& random, size_t count) {
  static const std::string kPieces[] = {"a", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xC3", "\xFF", "\x80", "\n"};
  std::string bytes;
  while (bytes.size() < count) bytes += kPieces[random() % std::size(kPieces)];
  return bytes.substr(0, count);
}

void head_and_tail_are_those_of_a_model_that_keeps_everything() {
  std::mt19937_64 random(20'261'121);
  for (int round = 0; round < 4000; ++round) {
    Model model{.cap = random() % 40, .all = {}};
    HeadTail kept(model.cap);
    for (size_t piece = random() % 12; piece > 0; --piece) {
      const std::string bytes = random_bytes(random, random() % 25);
      kept.append(bytes);
      model.all += bytes;
      CHECK(kept.total() == model.all.size());
      CHECK(kept.truncated() == (model.all.size() > model.cap));
      CHECK(kept.text() == model.text());
    }
    kept.clear();
    CHECK(kept.total() == 0 && kept.text().empty() && !kept.truncated());
  }
}

// What is kept is bounded by the cap, whatever the size of the pieces: only repairs and the mark are added.
void no_more_than_the_cap_is_kept() {
  std::mt19937_64 random(7);
  for (const uint64_t cap : {0, 1, 2, 3, 100, 4096, 65536}) {
    HeadTail kept(cap);
    uint64_t sent = 0;
    for (int piece = 0; piece < 50; ++piece) {
      const std::string bytes(random() % 20'000, 'x');
      kept.append(bytes);
      sent += bytes.size();
    }
    const std::string text = kept.text();
    CHECK(kept.total() == sent && kept.truncated());
    CHECK(static_cast<uint64_t>(std::count(text.begin(), text.end(), 'x')) == cap);
    CHECK(text.size() <= cap + 64);
  }
}

// 50 MiB of 0xff on three streams once made an answer that no reader took.
void what_is_shown_is_bounded_however_bad_the_bytes_are() {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    const size_t cap = random() % 200;
    HeadTail kept(cap);
    kept.append(random() % 2 ? std::string(random() % 300, '\xFF') : random_bytes(random, random() % 300));
    const Shown shown = kept.shown();
    CHECK(shown.text.size() <= cap + 40);
    CHECK(shown.truncated == (shown.text.find("bytes cut") != std::string::npos) || cap == 0);
    CHECK(repair_utf8(shown.text) == shown.text);
  }
}

// The repair of all of them was made, and thrown away for being too long: with that the supervisor was 70 ms of
// processor time at one program's end, and nobody else's was seen meanwhile.
void bad_bytes_take_no_more_memory_than_good_ones() {
  for (const size_t count : {size_t{1} << 20, size_t{3} << 20}) {
    std::array<size_t, 2> taken;
    for (const char byte : {'x', '\xFF'}) {
      HeadTail kept(1 << 20);
      kept.append(std::string(count, byte));
      allocated = 0;
      CHECK(kept.shown().text.size() <= (1 << 20) + 40);
      taken[byte == 'x' ? 0 : 1] = allocated;
    }
    CHECK(taken[1] <= 2 * taken[0]);
  }
}

// Where a stream is long it is not copied again while it grows, for all wait for that.
void a_long_stream_has_its_room_at_once() {
  HeadTail kept(64 << 20);
  const std::string piece(64 << 10, 'x');
  for (const size_t part : {size_t{0}, size_t{32} << 20}) {
    while (kept.total() < part + (2 << 20)) kept.append(piece);
    allocated = 0;
    while (kept.total() < part + (32 << 20)) kept.append(piece);
    CHECK(allocated == 0);
  }
}

void what_is_taken_is_not_copied() {
  HeadTail kept(100);
  kept.append(std::string(150, 'x'));
  CHECK(kept.held() == 100);
  CHECK(kept.take().shown().truncated && kept.held() == 0 && kept.total() == 0 && kept.text().empty());
  kept.append("y");
  CHECK(kept.text() == "y");
}

struct Source {
  UniqueFd read_end, write_end;
};

Source make_source() {
  int ends[2];
  CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void a_pipe_is_read_to_its_end_and_closed() {
  Source source = make_source();
  CHECK(write(source.write_end.get(), "hello!", 6) == 6);
  source.write_end.reset();
  Capture capture(std::move(source.read_end), 100);
  while (!capture.drain().empty()) {
  }
  CHECK(capture.fd() == -1 && capture.drain().empty());
  CHECK(capture.kept().text() == "hello!");
}

void one_reading_takes_all_that_a_pipe_holds() {
  Source source = make_source();
  std::string block(1000, 'x');
  while (write(source.write_end.get(), block.data(), block.size()) > 0) {
  }
  Capture capture(std::move(source.read_end), 10);
  CHECK(!capture.drain().empty());
  CHECK(capture.drain().empty() && capture.fd() != -1);
  CHECK(capture.kept().total() >= 60'000);
}

void an_empty_pipe_is_not_its_end() {
  Source source = make_source();
  const int fd = source.read_end.get();
  Capture capture(std::move(source.read_end), 10);
  CHECK(capture.drain().empty() && capture.fd() == fd);
  CHECK(write(source.write_end.get(), "a", 1) == 1);
  CHECK(capture.drain() == "a" && capture.kept().text() == "a");
}

}  // namespace

int main() {
  head_and_tail_are_those_of_a_model_that_keeps_everything();
  no_more_than_the_cap_is_kept();
  what_is_shown_is_bounded_however_bad_the_bytes_are();
  bad_bytes_take_no_more_memory_than_good_ones();
  a_long_stream_has_its_room_at_once();
  what_is_taken_is_not_copied();
  a_pipe_is_read_to_its_end_and_closed();
  one_reading_takes_all_that_a_pipe_holds();
  an_empty_pipe_is_not_its_end();
}
