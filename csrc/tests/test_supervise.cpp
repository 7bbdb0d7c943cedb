// The whole loop for programs: requests in, children forked and killed, one answer each.
#include "supervise.h"

#include <fstream>
#include <iterator>

#include "check.h"
#include "fake_pool.h"

using namespace rocstar;
using namespace rocstar::fake;

namespace {

void each_end_is_told_as_it_was() {
  Pool pool;
  Limits short_time = Pool::some_limits();
  short_time.wall_us = 20'000;
  const uint64_t exits = pool.run("exit 7"), killed = pool.run("signal 15"), hangs = pool.run("hang", short_time);
  const uint64_t floods = pool.run("flood 1"), echoes = pool.run("echo"), fds = pool.run("fds");
  const uint64_t denied = pool.run("denied"), errors = pool.run("flood 2"), stops = pool.run("stop", short_time);
  CHECK(pool.answer(exits).status == Status::kError && pool.answer(exits).code == 7 && !pool.answer(exits).signaled);
  CHECK(pool.answer(killed).status == Status::kSignaled && pool.answer(killed).code == SIGTERM);
  CHECK(pool.answer(hangs).status == Status::kTimeout && pool.answer(hangs).code == SIGKILL);
  CHECK(pool.answer(stops).status == Status::kTimeout);
  CHECK(pool.answer(floods).status == Status::kOutputLimit && (pool.answer(floods).flags & Outcome::kStdoutTruncated));
  CHECK(pool.answer(floods).out.size() > 8192 && pool.answer(floods).out.size() < 8192 + 64);
  CHECK(pool.answer(errors).status == Status::kOutputLimit && (pool.answer(errors).flags & Outcome::kStderrTruncated));
  CHECK(pool.answer(echoes).ok() && pool.answer(echoes).out == "input" && pool.answer(echoes).value == "v");
  CHECK(pool.answer(fds).code == 4);
  if (seccomp_available()) CHECK(pool.answer(denied).status == Status::kDenied);
}

void a_program_cannot_hide_its_end() {
  Pool pool;
  Limits short_time = Pool::some_limits();
  short_time.wall_us = 20'000;
  const uint64_t closes = pool.run("close 3"), value_flood = pool.run("flood 3"), closes_out = pool.run("close 1");
  CHECK(pool.answer(closes).ok() && pool.answer(closes_out).ok());
  CHECK(pool.answer(value_flood).status == Status::kOutputLimit);
  CHECK(pool.answer(pool.run("hang.deaf", short_time)).status == Status::kTimeout);
}

void it_answers_whatever_its_calls_do() {
  Pool pool({.max_live = 1});
  const uint64_t hangs = pool.run("hang"), waits = pool.run("exit 0");
  pool.ping(7);
  pool.ping(8);
  pool.cancel(hangs);
  CHECK(pool.answer(waits).ok());
}

void a_cancelled_call_ends_wherever_it_is() {
  Pool pool({.max_live = 1});
  const uint64_t running = pool.run("hang"), waiting = pool.run("exit 0");
  pool.cancel(waiting);
  pool.cancel(running);
  pool.cancel(99);
  const uint64_t next = pool.run("exit 7");
  CHECK(pool.answer(running).failed(Failure::kCancelled) && pool.answer(waiting).failed(Failure::kCancelled));
  CHECK(pool.answer(next).code == 7);
  pool.cancel(next);  // it has ended: nothing is left to do
  CHECK(pool.answer(pool.run("exit 0")).ok());
}

// Between the order and the birth nothing is known of a child but its sockets.
void a_call_that_is_cancelled_while_it_starts_is_answered_and_frees_its_place() {
  Pool pool({.max_live = 4, .max_sessions = 4});
  const uint64_t barrier = pool.opened();
  const pid_t zygote = pool.zygote();
  CHECK(kill(zygote, SIGSTOP) == 0);
  const uint64_t program = pool.run("hang"), session = pool.open();
  CHECK(pool.run_cell(barrier, "get").ok());  // it came last, so the others have been ordered
  pool.cancel(program);
  pool.cancel(session);
  CHECK(pool.run_cell(barrier, "get").ok());
  CHECK(kill(zygote, SIGCONT) == 0);
  CHECK(pool.answer(program).failed(Failure::kCancelled) && pool.answer(session).failed(Failure::kCancelled));
  for (int i = 0; i < 4; ++i) CHECK(pool.answer(pool.run("exit 0")).ok());
  CHECK(!pool.is_gone(session));  // there never was one
}

void many_calls_pass_through_few_places() {
  Pool pool({.max_live = 2});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(pool.run("exit " + std::to_string(i % 50)));
  for (size_t i = 0; i < ids.size(); ++i) CHECK(pool.answer(ids[i]).code == static_cast<int>(i % 50));
}

// Programs wait until what they may take fits into what there is; one larger than all runs alone.
void the_sum_of_memory_limits_is_bounded() {
  Pool pool({.max_live = 8, .memory_bytes = 2 * kMuch});
  const uint64_t first = pool.run("hang"), second = pool.run("hang"), third = pool.run("exit 3");
  Limits too_much = Pool::some_limits();
  too_much.memory_bytes = 3 * kMuch;
  const uint64_t large = pool.run("exit 5", too_much);
  const uint64_t behind = pool.run("exit 6");
  pool.cancel(behind);  // answered at once, as it waits: so the third has not started either
  CHECK(pool.answer(behind).failed(Failure::kCancelled));
  pool.cancel(first);
  CHECK(pool.answer(third).code == 3);
  pool.cancel(second);
  CHECK(pool.answer(large).code == 5);
}

void a_closed_socket_ends_the_children() {
  pid_t zygote = 0;
  {
    Pool pool;
    pool.run("hang");
    CHECK(pool.answer(pool.run("exit 0")).ok());
    zygote = pool.zygote();
  }  // ~Pool waits for the supervisor, which must kill the child that hangs
  CHECK(!lives(zygote));
}

void a_killed_zygote_loses_no_call() {
  Pool pool({.max_live = 4, .max_sessions = 1});
  const pid_t first = pool.zygote();
  Limits a_while = Pool::some_limits();
  a_while.wall_us = 300'000;
  const uint64_t running = pool.run("hang", a_while), barrier = pool.opened();
  CHECK(kill(first, SIGSTOP) == 0);
  const uint64_t starting = pool.run("exit 4"), cancelled = pool.run("hang");
  CHECK(pool.run_cell(barrier, "get").ok());
  pool.cancel(cancelled);
  CHECK(pool.run_cell(barrier, "get").ok());
  CHECK(kill(first, SIGKILL) == 0);
  CHECK(pool.answer(starting).code == 4 && pool.zygote(2) != first);
  CHECK(pool.answer(running).status == Status::kTimeout);  // not its zygote's child
  CHECK(pool.answer(cancelled).failed(Failure::kCancelled));
}

// They hang, so one that runs twice is there for ever.
void a_program_whose_zygote_dies_runs_once() {
  Pool pool({.max_live = 6});
  const auto children = [&pool] {
    const std::string pid = std::to_string(pool.supervisor());
    std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
    return std::distance(std::istream_iterator<int>(file), std::istream_iterator<int>());
  };
  constexpr int kOwn = 2;  // the starter and the zygote
  uint64_t pings = 0;
  for (size_t zygote = 1; zygote <= 120;) {
    pool.zygote(zygote);
    std::vector<uint64_t> ids;
    for (int i = 0; i < 6; ++i) ids.push_back(pool.run("hang"));
    for (uint32_t deaths = 0; deaths < kMostDeaths; ++deaths, ++zygote) {
      CHECK(kill(pool.zygote(zygote), SIGKILL) == 0);
    }
    while (children() < kOwn + 6) pool.ping(++pings);
    for (const uint64_t id : ids) pool.cancel(id);
    for (const uint64_t id : ids) CHECK(pool.answer(id).failed(Failure::kCancelled));
    while (children() > kOwn) pool.ping(++pings);
  }
}

// After a zygote's death children may end that nobody knows, and those are looked for.
void an_end_that_comes_with_the_birth_is_no_strangers() {
  Pool pool({.max_live = 8});
  std::vector<uint64_t> ids;
  for (size_t zygote = 1; zygote <= 3; ++zygote) {
    CHECK(kill(pool.zygote(zygote), SIGKILL) == 0);
    pool.zygote(zygote + 1);
    for (int i = 0; i < 200; ++i) ids.push_back(pool.run("exit 3"));
  }
  for (const uint64_t id : ids) CHECK(pool.answer(id).code == 3);
}

// What the kernel asks for it may come before the word of its birth.
void a_program_that_asks_at_once_is_known() {
  if (landlock_abi() == 0 || !notify_available()) return;
  Pool pool({.max_live = 8});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 400; ++i) ids.push_back(pool.run("files 2"));
  for (const uint64_t id : ids) CHECK(pool.answer(id).code == 2);
}

// Nobody looks at its pipes while it is young: what they held is there all the same, and so is what it said last.
void what_a_short_program_said_is_there() {
  Pool pool({.max_live = 4});
  Limits much = Pool::some_limits();
  much.output_bytes = 1 << 20;
  std::vector<uint64_t> echoes, blocks;
  for (int i = 0; i < 50; ++i) echoes.push_back(pool.run("echo"));
  for (int i = 0; i < 10; ++i) blocks.push_back(pool.run("write 200000", much));
  for (const uint64_t id : echoes) CHECK(pool.answer(id).out == "input" && pool.answer(id).value == "v");
  for (const uint64_t id : blocks) CHECK(pool.answer(id).out.size() == 200'000 && pool.answer(id).ok());
}

// The value is read at the end, and too much of it is as much as it was of one who said it in time to be killed.
void a_value_beyond_its_limit_is_told() {
  Pool pool({.max_live = 1});
  Limits little = Pool::some_limits();
  little.output_bytes = 1024;
  const auto told = pool.answer(pool.run("value 20000", little));
  CHECK(told.flags & Outcome::kOutputLimit);
  CHECK(!(pool.answer(pool.run("value 900", little)).flags & Outcome::kOutputLimit));
}

void a_zygote_that_cannot_be_is_given_up() {
  Pool pool({.zygote_command = {"/bin/false"}, .max_live = 1});
  CHECK(pool.fatal().find("zygote_start") != std::string::npos);
}

// What a zygote of `flavour` finds when it is to be none.
std::string ban_on(const std::string& folder, const std::string& flavour) { return folder + "/--flavour=" + flavour; }

int banned_zygote(const std::string& how) {
  if (how == "crash") std::abort();
  while (how == "hang") pause();
  say_fatal(3, R"({"kind": "missing_import", "message": "gone"})");
  return 3;
}

// Whatever keeps it from being: other flavours and sessions go on, and when nothing does any more it is back.
void a_flavour_that_cannot_be_any_more_fails_alone() {
  char folder[] = "/tmp/zygote-ban-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  for (const char* how : {"fatal", "crash", "hang"}) {
    Pool pool({.zygote_command = {"/proc/self/exe", "zygote", folder},
               .flavours = {"kept", "lost"},
               .max_live = 2,
               .max_sessions = 1,
               .zygote_start_us = std::string(how) == "hang" ? uint64_t{500'000} : kMinute});
    const uint64_t session = pool.opened();
    CHECK(pool.answer(pool.run("exit 3", Pool::some_limits(), 1)).code == 3);
    std::ofstream(ban_on(folder, "lost")) << how;
    CHECK(kill(pool.zygote_of(1), SIGKILL) == 0);
    for (int i = 0; i < 3; ++i) {
      const Answer answer = pool.answer(pool.run("exit 3", Pool::some_limits(), 1));
      CHECK(answer.failed(Failure::kZygoteStart) && answer.text.find("message") != std::string::npos);
    }
    CHECK(pool.answer(pool.run("exit 4")).code == 4);
    CHECK(pool.run_cell(session, "set 5").ok() && pool.run_cell(session, "get").value == "5");
    std::filesystem::remove(ban_on(folder, "lost"));
    while (pool.answer(pool.run("exit 3", Pool::some_limits(), 1)).failed(Failure::kZygoteStart)) {
    }
    CHECK(pool.answer(pool.run("exit 3", Pool::some_limits(), 1)).code == 3);
  }
  std::filesystem::remove(folder);
}

void scratch_is_empty_counted_and_gone() {
  if (landlock_abi() == 0 || !notify_available()) return;
  Pool pool({.max_live = 1});
  CHECK(pool.answer(pool.run("files 10")).code == 4);
  CHECK(pool.answer(pool.run("names")).value.empty());
  CHECK(pool.answer(pool.run("parent")).code == EPERM);
  Limits none = Pool::some_limits();
  none.files = 0;
  CHECK(pool.answer(pool.run("files 10", none)).code == 0);
}

// The supervisor's descriptors, after all kinds of endings; its children are seen to by ~Pool.
void nothing_is_left_of_a_call() {
  Pool pool({.max_live = 2, .max_sessions = 4});
  const std::string folder = "/proc/" + std::to_string(pool.supervisor()) + "/fd";
  const auto count = [&folder] {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  const auto all_kinds = [&pool] {
    for (const char* code : {"exit 0", "signal 9", "flood 1", "close 3", "echo"}) pool.answer(pool.run(code));
    const uint64_t session = pool.opened();
    CHECK(pool.run_cell(session, "get").ok());
    const uint64_t branch = pool.branch(session);
    const bool branched = pool.answer(branch).type == FrameType::kOpened;
    CHECK(branched == notify_available());
    CHECK(pool.run_cell(session, "exit 0").ok() && pool.gone(session) == GoneWhy::kDied);
    if (branched) pool.close_session(branch);
    if (branched) pool.gone(branch);
  };
  all_kinds();
  all_kinds();
  const auto before = count();
  for (int i = 0; i < 5; ++i) all_kinds();
  while (count() > before) pool.answer(pool.run("exit 0"));  // the last ones may not have been reaped yet
}

}  // namespace

int main(int argc, char** argv) {
  if (is_zygote(argc, argv)) {
    std::string how;
    if (argc > 3 && std::ifstream(std::string(argv[2]) + "/" + argv[3]) >> how) return banned_zygote(how);
    return zygote_main();
  }
  each_end_is_told_as_it_was();
  a_program_cannot_hide_its_end();
  it_answers_whatever_its_calls_do();
  a_cancelled_call_ends_wherever_it_is();
  a_call_that_is_cancelled_while_it_starts_is_answered_and_frees_its_place();
  a_flavour_that_cannot_be_any_more_fails_alone();
  many_calls_pass_through_few_places();
  the_sum_of_memory_limits_is_bounded();
  a_closed_socket_ends_the_children();
  a_killed_zygote_loses_no_call();
  a_program_whose_zygote_dies_runs_once();
  an_end_that_comes_with_the_birth_is_no_strangers();
  a_program_that_asks_at_once_is_known();
  what_a_short_program_said_is_there();
  a_value_beyond_its_limit_is_told();
  a_zygote_that_cannot_be_is_given_up();
  scratch_is_empty_counted_and_gone();
  nothing_is_left_of_a_call();
}
