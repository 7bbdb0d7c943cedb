// Sessions: state between cells, leases, eviction, branches, and what a hostile one can do to the supervisor.
#include <sys/resource.h>

#include "check.h"
#include "fake_pool.h"
#include "supervise.h"

using namespace rocstar;
using namespace rocstar::fake;

namespace {

void cells_share_state_and_sessions_do_not() {
  Pool pool;
  const uint64_t one = pool.opened(), other = pool.opened();
  CHECK(pool.run_cell(one, "set 5").ok());
  CHECK(pool.run_cell(one, "get").value == "5" && pool.run_cell(other, "get").value == "0");
  CHECK(pool.run_cell(one, "fail").status == Status::kError && pool.run_cell(one, "get").value == "5");
  pool.close_session(one);
  CHECK(pool.gone(one) == GoneWhy::kClosed);
  CHECK(pool.run_cell(one, "get").failed(Failure::kSessionLost));
  CHECK(pool.run_cell(77'777, "get").failed(Failure::kSessionLost));
}

void every_cell_knows_the_seed() {
  Pool pool;
  const uint64_t seeded = pool.opened(Pool::some_limits(), 7), other = pool.opened();
  CHECK(pool.run_cell(seeded, "seed").value == "7" && pool.run_cell(other, "seed").value.empty());
}

void a_late_cell_is_interrupted_and_keeps_its_session() {
  Pool pool;
  const uint64_t session = pool.opened();
  CHECK(pool.run_cell(session, "set 9").ok());
  CHECK(pool.run_cell(session, "sleep", 20'000).status == Status::kTimeout);
  CHECK(pool.run_cell(session, "get").value == "9");
  const uint64_t cancelled = pool.cell(session, "sleep");
  pool.cancel(cancelled);
  CHECK(pool.answer(cancelled).failed(Failure::kCancelled));
  CHECK(pool.run_cell(session, "get").value == "9");
}

void a_cell_that_will_not_stop_is_killed() {
  Pool pool;
  const uint64_t session = pool.opened();
  const Answer late = pool.run_cell(session, "hang.deaf", 20'000);
  CHECK(late.status == Status::kTimeout && late.code == SIGKILL && pool.gone(session) == GoneWhy::kDied);
  CHECK(pool.ended(session, "killed by signal 9 (Killed)") && pool.ended(session, "into a cell that had 0.020 s"));
  CHECK(pool.ended(session, ": it did not stop when its time was over"));
}

void an_exit_is_a_result_and_the_end() {
  Pool pool;
  const uint64_t session = pool.opened();
  const Answer last = pool.run_cell(session, "exit 3");
  CHECK(last.code == 3 && !last.signaled && pool.gone(session) == GoneWhy::kDied);
  CHECK(pool.ended(session, "it exited with code 3") && !pool.ended(session, ":"));
  const uint64_t flooded = pool.opened();
  CHECK(pool.run_cell(flooded, "flood 1").status == Status::kOutputLimit);
}

void cells_of_one_session_wait_for_each_other() {
  Pool pool;
  const uint64_t session = pool.opened();
  const uint64_t first = pool.cell(session, "sleep", 50'000), second = pool.cell(session, "set 4"),
                 third = pool.cell(session, "get");
  CHECK(pool.answer(third).value == "4" && pool.answer(second).ok());
  CHECK(pool.answer(first).status == Status::kTimeout);
}

void the_least_recently_used_gives_way() {
  Pool pool({.max_live = 3, .max_sessions = 2});
  const uint64_t first = pool.opened(), second = pool.opened();
  CHECK(pool.run_cell(first, "set 1").ok());
  const uint64_t third = pool.opened();
  CHECK(pool.gone(second) == GoneWhy::kEvicted);
  CHECK(pool.run_cell(first, "get").value == "1" && pool.run_cell(third, "get").ok());
}

// Also while they begin: each waits until another is there to give way.
void no_more_sessions_live_than_allowed() {
  Pool pool({.max_live = 4, .max_sessions = 1});
  const uint64_t first = pool.open(), second = pool.open(), third = pool.open();
  CHECK(pool.answer(third).type == FrameType::kOpened && pool.answer(second).type == FrameType::kOpened);
  CHECK(pool.gone(first) == GoneWhy::kEvicted && pool.gone(second) == GoneWhy::kEvicted && !pool.is_gone(third));
  CHECK(pool.answer(pool.branch(third)).failed(Failure::kFull));
  CHECK(pool.run_cell(third, "get").ok());
}

void an_idle_session_gives_way_to_a_program_that_needs_its_memory() {
  Pool pool({.max_live = 3, .max_sessions = 4, .memory_bytes = kMuch});
  const uint64_t session = pool.opened();
  const uint64_t program = pool.run("exit 0");
  CHECK(pool.answer(program).ok() && pool.gone(session) == GoneWhy::kEvicted);
}

// It is weighed when somebody needs the room, however short its last cell was ago.
void an_idle_session_counts_as_what_it_holds() {
  Pool pool({.max_live = 3, .max_sessions = 4, .memory_bytes = kMuch + (1ull << 30)});
  const uint64_t session = pool.opened();
  for (int i = 0; i < 3; ++i) {
    CHECK(pool.run_cell(session, "set 8").ok());
    CHECK(pool.answer(pool.run("exit 0")).ok() && pool.run_cell(session, "get").value == "8");
  }
}

// What runs ends some day: a cell waits for it rather than lose the session that it belongs to.
void the_session_whose_cell_is_next_is_not_the_one_that_gives_way() {
  Pool pool({.max_live = 3, .max_sessions = 4, .memory_bytes = kMuch + (1ull << 30)});
  const uint64_t session = pool.opened();
  CHECK(pool.run_cell(session, "set 8").ok());
  Limits small = Pool::some_limits();
  small.memory_bytes = kMuch - (1ull << 30);
  small.wall_us = 200'000;
  const uint64_t program = pool.run("hang", small);
  CHECK(pool.run_cell(session, "get").value == "8");
  CHECK(pool.answer(program).status == Status::kTimeout);
}

void a_lease_ends() {
  Pool pool({.max_live = 2, .max_sessions = 2, .lease_us = 100'000});
  CHECK(pool.gone(pool.opened()) == GoneWhy::kExpired);
}

void a_branch_goes_on_from_the_same_state() {
  Pool pool;
  const uint64_t session = pool.opened();
  CHECK(pool.run_cell(session, "set 1").ok());
  const uint64_t left = pool.branch(session), right = pool.branch(session);
  CHECK(pool.answer(left).type == FrameType::kOpened && pool.answer(right).type == FrameType::kOpened);
  CHECK(pool.run_cell(left, "set 2").ok());
  const uint64_t deeper = pool.branch(left);
  CHECK(pool.answer(deeper).type == FrameType::kOpened);
  CHECK(pool.run_cell(session, "get").value == "1" && pool.run_cell(right, "get").value == "1");
  CHECK(pool.run_cell(left, "get").value == "2" && pool.run_cell(deeper, "get").value == "2");
  pool.close_session(session);
  pool.gone(session);
  CHECK(pool.run_cell(deeper, "get").value == "2");  // it does not need those it comes from
  CHECK(pool.run_cell(deeper, "parent").code == EPERM);
}

void a_cancelled_branch_leaves_its_origin_alone() {
  Pool pool;
  const uint64_t session = pool.opened();
  CHECK(pool.run_cell(session, "set 6").ok());
  for (int i = 0; i < 20; ++i) {
    const uint64_t branch = pool.branch(session);
    pool.cancel(branch);
    const Answer answer = pool.answer(branch);
    CHECK(answer.failed(Failure::kCancelled) || answer.type == FrameType::kOpened);
    if (answer.type == FrameType::kOpened) pool.close_session(branch);
  }
  CHECK(pool.run_cell(session, "get").value == "6");
}

void sessions_outlive_their_zygote() {
  Pool pool;
  const uint64_t session = pool.opened();
  CHECK(pool.run_cell(session, "set 3").ok());
  const pid_t zygote = pool.zygote();
  CHECK(kill(zygote, SIGKILL) == 0 && pool.zygote(2) != zygote);
  CHECK(pool.run_cell(session, "get").value == "3");
  CHECK(pool.answer(pool.branch(session)).type == FrameType::kOpened);
  CHECK(pool.answer(pool.run("exit 0")).ok());
}

// Whatever a session says on its socket, it loses itself and nobody else.
void forged_words_cost_a_session_only_itself() {
  const pid_t victim = fork();
  CHECK(victim >= 0);
  if (victim == 0) {
    while (true) pause();
  }
  Pool pool;
  const uint64_t innocent = pool.opened();
  CHECK(pool.run_cell(innocent, "set 2").ok());
  const pid_t another = static_cast<pid_t>(std::stoi(pool.run_cell(innocent, "pid").value));
  const std::string words[] = {"forge.twice",
                               "branch.names " + std::to_string(victim),
                               "branch.names " + std::to_string(pool.supervisor()),
                               "branch.names " + std::to_string(pool.zygote()),
                               "branch.names " + std::to_string(another),
                               "branch.names 1",
                               "branch.names -1",
                               "branch.names.itself",
                               "branch.half",
                               "branch.silent",
                               "branch.nothing",
                               "branch.untied",
                               "branch.tied.to.nothing",
                               "branch.stray"};
  for (const std::string& word : words) {
    const uint64_t session = pool.opened();
    pool.run_cell(session, word);
    const uint64_t branch = pool.branch(session);
    const Answer answer = pool.answer(branch);
    CHECK(answer.type == FrameType::kFailed);
    pool.close_session(branch);
    pool.close_session(session);
    const bool died = pool.gone(session) == GoneWhy::kDied;  // before it was closed
    if (died && word == "forge.twice") CHECK(pool.ended(session, ": it answered what it was not asked"));
    CHECK(pool.run_cell(innocent, "get").value == "2");
    for (int i = 0; i < 4; ++i) CHECK(pool.answer(pool.run("exit 0")).ok());
  }
  CHECK(lives(victim) && lives(pool.supervisor()) && pool.zygote() > 0);
  CHECK(kill(victim, SIGKILL) == 0 && waitpid(victim, nullptr, 0) == victim);
}

// A pause of the machine is charged to whoever was on it, once. Who works has used more at the next look.
void one_that_was_charged_for_a_pause_is_not_at_work() {
  constexpr uint64_t kSecond = 1'000'000;
  uint64_t suspected = 0;
  CHECK(rest_of(kSecond + kIdleCpuUs, kSecond, suspected) == Rest::kCalm && suspected == 0);
  CHECK(rest_of(6 * kSecond, kSecond, suspected) == Rest::kSuspected);
  for (int look = 0; look < 3; ++look) {
    CHECK(rest_of(6 * kSecond + kRestlessCpuUs, kSecond, suspected) == Rest::kCalm);
  }
  CHECK(rest_of(6 * kSecond + kRestlessCpuUs + 1, kSecond, suspected) == Rest::kWorking);
}

std::set<pid_t> children_of(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children";
  FILE* file = std::fopen(path.c_str(), "re");
  std::set<pid_t> found;
  for (int child; file != nullptr && std::fscanf(file, "%d", &child) == 1;) found.insert(child);
  if (file != nullptr) std::fclose(file);
  return found;
}

// A process that nobody was told of must not outlive its session, and never its supervisor.
void a_stray_dies_with_its_session() {
  Pool pool;
  const uint64_t session = pool.opened();
  pool.run_cell(session, "branch.stray");
  CHECK(pool.answer(pool.branch(session)).type == FrameType::kFailed);
  pool.close_session(session);
  pool.gone(session);
  CHECK(pool.answer(pool.run("exit 0")).ok());
  while (children_of(pool.supervisor()).size() > 2) {  // the starter and the zygote; ctest's own limit ends this
    pool.answer(pool.run("exit 0"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (is_zygote(argc, argv)) return zygote_main();
  cells_share_state_and_sessions_do_not();
  every_cell_knows_the_seed();
  a_late_cell_is_interrupted_and_keeps_its_session();
  a_cell_that_will_not_stop_is_killed();
  an_exit_is_a_result_and_the_end();
  cells_of_one_session_wait_for_each_other();
  the_least_recently_used_gives_way();
  no_more_sessions_live_than_allowed();
  an_idle_session_gives_way_to_a_program_that_needs_its_memory();
  an_idle_session_counts_as_what_it_holds();
  the_session_whose_cell_is_next_is_not_the_one_that_gives_way();
  a_lease_ends();
  one_that_was_charged_for_a_pause_is_not_at_work();
  if (!notify_available()) return 0;
  a_branch_goes_on_from_the_same_state();
  a_cancelled_branch_leaves_its_origin_alone();
  sessions_outlive_their_zygote();
  forged_words_cost_a_session_only_itself();
  a_stray_dies_with_its_session();
}
