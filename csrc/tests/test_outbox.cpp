#include "outbox.h"

#include <chrono>

#include "check.h"

namespace {

using rocstar::Outbox;
using Clock = Outbox::Clock;
using std::chrono::milliseconds;

const Clock::time_point kNow{std::chrono::hours(1)};

void add_patient(Outbox& outbox, std::string_view frame, Clock::time_point now) {
  const size_t begin = outbox.size();
  outbox.frames() += frame;
  outbox.may_wait(begin, now);
}

void what_has_no_time_goes_at_once_and_takes_all_with_it() {
  Outbox outbox;
  CHECK(!outbox.ready(kNow) && !outbox.due());
  outbox.frames() += "now";
  CHECK(outbox.ready(kNow) && !outbox.due());
  outbox.drop(3);
  CHECK(!outbox.ready(kNow));
  add_patient(outbox, "later", kNow);
  CHECK(!outbox.ready(kNow));
  outbox.frames() += "now";
  CHECK(outbox.ready(kNow) && outbox.unsent() == "laternow");
  outbox.drop(8);
  outbox.frames() += "now";  // the other way round
  add_patient(outbox, "later", kNow);
  CHECK(outbox.ready(kNow));
}

void a_result_waits_for_a_moment_at_most() {
  Outbox outbox;
  add_patient(outbox, "one", kNow);
  add_patient(outbox, "two", kNow + milliseconds(1));
  CHECK(!outbox.ready(kNow + milliseconds(1)) && outbox.due() == kNow + rocstar::kTogether);
  CHECK(outbox.ready(kNow + rocstar::kTogether));
  outbox.drop(outbox.unsent().size());
  CHECK(!outbox.due());
  add_patient(outbox, "three", kNow + milliseconds(5));  // its own moment
  CHECK(!outbox.ready(kNow + milliseconds(6)) && outbox.due() == kNow + milliseconds(5) + rocstar::kTogether);
}

void so_many_go_together() {
  Outbox outbox;
  for (uint32_t i = 1; i < rocstar::kMostTogether; ++i) add_patient(outbox, "x", kNow);
  CHECK(!outbox.ready(kNow));
  add_patient(outbox, "x", kNow);
  CHECK(outbox.ready(kNow));
  Outbox large;
  add_patient(large, std::string(rocstar::kMostBytesTogether, 'x'), kNow);
  CHECK(large.ready(kNow));
}

// The socket took a part: the rest has no time.
void a_part_that_was_sent_leaves_the_rest() {
  Outbox outbox;
  add_patient(outbox, "0123456789", kNow);
  outbox.drop(3);
  CHECK(outbox.unsent() == "3456789" && outbox.ready(kNow));
  add_patient(outbox, "ab", kNow);
  CHECK(outbox.ready(kNow) && outbox.unsent() == "3456789ab");
  outbox.drop(6);
  CHECK(outbox.unsent() == "9ab");
  outbox.drop(3);
  CHECK(outbox.unsent().empty() && !outbox.ready(kNow));
}

void a_long_part_is_neither_copied_nor_kept() {
  Outbox outbox;
  outbox.frames() += "before";
  std::string part(4 * rocstar::kPartBytes, 'x');
  const char* const where = part.data();
  outbox.append(std::move(part));
  for (size_t i = 0; i < 2 * rocstar::kPartBytes; i += 8) outbox.frames() += "12345678";
  CHECK(outbox.size() == 6 + 6 * rocstar::kPartBytes && outbox.unsent() == "before");
  CHECK(outbox.drop(6) == "before" && outbox.unsent().data() == where);
  CHECK(outbox.drop(1).empty() && outbox.unsent().data() == where + 1);
  CHECK(outbox.drop(outbox.unsent().size()).data() == where);
  while (outbox.size() > 0) {
    CHECK(outbox.unsent().substr(0, 8) == "12345678" && outbox.unsent().size() <= rocstar::kPartBytes);
    outbox.drop(outbox.unsent().size());
  }
  outbox.append(std::string(4 * rocstar::kPartBytes, 'x'));  // alone
  CHECK(outbox.drop(outbox.size()).size() == 4 * rocstar::kPartBytes && outbox.unsent().empty());
}

}  // namespace

int main() {
  a_long_part_is_neither_copied_nor_kept();
  what_has_no_time_goes_at_once_and_takes_all_with_it();
  a_result_waits_for_a_moment_at_most();
  so_many_go_together();
  a_part_that_was_sent_leaves_the_rest();
}
