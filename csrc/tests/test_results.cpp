// Long results and inputs, for which nobody else waits. With the supervisor's other threads held still, what is theirs
// to do is not done, and all else has to go on.
#include "background_thread.h"
#include "check.h"
#include "fake_pool.h"

using namespace rocstar;
using namespace rocstar::fake;

namespace {

constexpr size_t kOutput = 3 * kLong;
const std::string kWriteLong = "write " + std::to_string(kOutput);

Limits much_output() {
  Limits limits = Pool::some_limits();
  limits.output_bytes = 4 * kLong;
  return limits;
}

// Before there is anything long: the first, and the thread sanitizer's own.
std::vector<pid_t> first_threads(Pool& pool) {
  pool.zygote();
  return threads_of(pool.supervisor());
}

size_t threads(const Pool& pool) { return threads_of(pool.supervisor()).size(); }

void a_neighbour_waits_for_no_long_result_and_its_own_lane_does() {
  Pool pool({.max_live = 1});
  const auto first = first_threads(pool);
  CHECK(pool.answer(pool.run("write 1000")).ok() && threads(pool) == first.size());  // a short one needs none
  CHECK(pool.answer(pool.run(kWriteLong, much_output())).out.size() == kOutput && threads(pool) > first.size());
  pool.ping(1);  // what it sent is given back by now
  HeldThreads held(pool.supervisor());
  if (held.empty()) return;
  const uint64_t large = pool.run(kWriteLong, much_output()), next = pool.run("exit 7");
  for (uint64_t i = 0; i < 10; ++i) CHECK(pool.answer(pool.run_for(kOwnersLane | i, "exit 3")).code == 3);
  CHECK(!pool.is_answered(large) && !pool.is_answered(next));
  held.let_go();
  CHECK(pool.answer(large).ok() && pool.answer(large).out == std::string(kOutput, 'x'));
  CHECK(pool.answer(next).code == 7);
}

void a_long_value_is_whole() {
  Pool pool;
  const std::string code = "value " + std::to_string(kOutput);
  CHECK(pool.answer(pool.run(code, much_output())).value == std::string(kOutput, 'v'));
  const uint64_t session = pool.opened(much_output());
  CHECK(pool.run_cell(session, code).value == std::string(kOutput, 'v'));
  CHECK(pool.run_cell(session, kWriteLong).out == std::string(kOutput, 'x'));
  const Answer last = pool.run_cell(session, "value 1");
  CHECK(last.value == "v" && last.out.empty());
}

void a_session_is_gone_after_its_last_result() {
  Pool pool;
  const uint64_t session = pool.opened(much_output());
  const uint64_t cell = pool.cell(session, "write.exit " + std::to_string(kOutput));
  CHECK(pool.gone(session) == GoneWhy::kDied && pool.answered_before_gone(session) == 2);
  CHECK(pool.answer(cell).out.size() == kOutput);
}

void a_long_input_is_written_beside_and_can_be_cancelled() {
  Pool pool;
  const auto first = first_threads(pool);
  const std::string input(kLong, 'i');
  CHECK(pool.answer(pool.run_with(input, "echo")).out == std::string(100, 'i') && threads(pool) > first.size());
  pool.ping(1);  // what it sent is given back by now
  HeldThreads held(pool.supervisor());
  if (held.empty()) return;
  const uint64_t cancelled = pool.run_with(input, "echo"), other = pool.run_with(input, "echo");
  CHECK(pool.answer(pool.run("exit 3")).code == 3 && !pool.is_answered(cancelled));
  pool.cancel(cancelled);
  CHECK(pool.answer(cancelled).failed(Failure::kCancelled) && !pool.is_answered(other));
  held.let_go();
  CHECK(pool.answer(other).out == std::string(100, 'i'));
}

void a_long_program_arrives_whole() {
  Pool pool;
  CHECK(pool.answer(pool.run("exit 5" + std::string(kOutput, ' '))).code == 5);
  CHECK(pool.answer(pool.run("exit 6" + std::string(kSentAhead + 1, ' '))).code == 6);
}

// Long answers are made by the worker while the loop makes short ones and takes new homes: no buffer and no directory
// of one owner is used for another. The thread sanitizer sees what the contents happen not to show.
void files_of_two_owners_are_not_mixed() {
  if (landlock_abi() == 0 || !notify_available()) return;
  Pool pool({.max_live = 24});
  Limits large = much_output(), small = Pool::some_limits();
  large.file_bytes = 2 * kLong;
  small.file_bytes = kLong / 8;
  constexpr int kSmall = 8;
  for (int round = 0; round < 12; ++round) {
    const uint64_t first = pool.run_to_fetch(1, "fill.A " + std::to_string(large.file_bytes), large);
    std::vector<uint64_t> others;
    for (int i = 0; i < kSmall; ++i)
      others.push_back(pool.run_to_fetch(2, "fill.B " + std::to_string(small.file_bytes), small));
    CHECK(pool.answer(first).ok());
    for (const char* name : {"f", ".display/0"})
      CHECK(pool.files(first).at(name) == std::string(large.file_bytes, 'A'));
    for (const uint64_t other : others) {
      CHECK(pool.answer(other).ok());
      for (const char* name : {"f", ".display/0"})
        CHECK(pool.files(other).at(name) == std::string(small.file_bytes, 'B'));
    }
  }
}

// It closes its socket while a result is in the making.
void a_pool_may_go_at_any_time() {
  Pool pool;
  pool.run(kWriteLong, much_output());
  pool.answer(pool.run("exit 0"));
}

}  // namespace

int main(int argc, char** argv) {
  if (is_zygote(argc, argv)) return zygote_main();
  a_neighbour_waits_for_no_long_result_and_its_own_lane_does();
  a_long_value_is_whole();
  a_session_is_gone_after_its_last_result();
  a_long_input_is_written_beside_and_can_be_cancelled();
  a_long_program_arrives_whole();
  files_of_two_owners_are_not_mixed();
  a_pool_may_go_at_any_time();
}
