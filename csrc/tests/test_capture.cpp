#include <fcntl.h>

#include <string>

#include "capture.h"
#include "check.h"

using namespace rocstar;

namespace {

struct Source {
  UniqueFd read_end, write_end;
};

Source make_source() {
  int ends[2];
  CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Capture capture_all(const std::string& bytes, uint64_t cap) {
  Source source = make_source();
  CHECK(write(source.write_end.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  source.write_end.reset();
  Capture capture(std::move(source.read_end), cap);
  while (capture.drain()) {
  }
  CHECK(capture.fd() == -1);
  return capture;
}

void the_head_is_kept_and_everything_counted() {
  const Capture whole = capture_all("hello", 5);
  CHECK(whole.text() == "hello" && !whole.truncated() && whole.total() == 5);
  const Capture cut = capture_all("hello!", 5);
  CHECK(cut.text() == "hello" && cut.truncated() && cut.total() == 6);
  const Capture none = capture_all("hello", 0);
  CHECK(none.text().empty() && none.truncated());
  const Capture big = capture_all(std::string(60'000, 'x'), 100);
  CHECK(big.text().size() == 100 && big.total() == 60'000 && big.raw().size() < 200);
}

void a_cut_respects_code_points_and_repairs_the_rest() {
  CHECK(capture_all("x\xE2\x82\xAC", 3).text() == "x");
  CHECK(capture_all("x\xFF", 9).text() == "x\xEF\xBF\xBD");
}

void an_empty_pipe_is_not_its_end() {
  Source source = make_source();
  const int fd = source.read_end.get();
  Capture capture(std::move(source.read_end), 10);
  CHECK(!capture.drain() && capture.fd() == fd);
  CHECK(write(source.write_end.get(), "a", 1) == 1);
  CHECK(capture.drain() && capture.text() == "a");
}

}  // namespace

int main() {
  the_head_is_kept_and_everything_counted();
  a_cut_respects_code_points_and_repairs_the_rest();
  an_empty_pipe_is_not_its_end();
}
