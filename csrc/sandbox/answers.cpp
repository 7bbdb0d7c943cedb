// How results are put together and go out: short ones at once, long ones in a thread of their own (worker.h).
//
//   a program's end or a cell's --> report --+---------------- short ---------------> outbox
//                                            +-- long: keeps its place --> worker --> outbox, and what waited behind it
//
// What a long one is made of is the thread's until it is done: its process may be gone by then, or have its next cell.
#include <functional>
#include <utility>

#include "fetch.h"
#include "process.h"

namespace rocstar {
namespace {

// All that a result is made of. Invariant: nothing in it refers to an object of the supervisor, whose loop goes on
// while the worker makes the result. `directory` is a descriptor; the loop keeps the home that owns it until the result
// is made.
struct Answer {
  Outcome outcome;
  Limits limits;
  HeadTail out, err, value;
  int directory;
  uint64_t most_file_bytes;  // 0 where no file was made or none is asked for
  std::string fetch;
  bool displays;

  bool is_long() const { return out.held() + err.held() + value.held() + most_file_bytes >= kLong; }

  // Its frames: files first, as their reader wants them. Nothing is left of the texts after that.
  void append_to(std::string& to) {
    Shown shown_out = out.shown(), shown_err = err.shown();
    outcome.out = std::move(shown_out.text);
    outcome.err = std::move(shown_err.text);
    outcome.value = value.text();
    if (shown_out.truncated) outcome.flags |= Outcome::kStdoutTruncated;
    if (shown_err.truncated) outcome.flags |= Outcome::kStderrTruncated;
    if (!outcome.value.empty()) outcome.flags |= Outcome::kHasValue;
    for (HeadTail* stream : {&out, &err, &value}) stream->take();
    append_files(to, outcome.id, directory, fetch, displays);
    append_result(to, outcome, status_of(outcome, limits));
    outcome = {};
  }
};

}  // namespace

void Supervisor::report(Process& process, Outcome outcome) {
  if (outcome.flags & Outcome::kCancelled) {
    append_failed(outbox_.frames(), outcome.id, Failure::kCancelled, "cancelled");
    return;
  }
  if (outcome.flags & Outcome::kNoScratch) {
    append_failed(outbox_.frames(), outcome.id, Failure::kNodeScratch,
                  "the files of all programs together took too much room, and most of it was this one's");
    return;
  }
  const bool by_us = outcome.flags & Outcome::kMemoryKilled;  // as a group, which has its limit
  if (!by_us && was_killed_for_memory(process, outcome)) outcome.flags |= Outcome::kMemoryKilled;
  if (killed_below_limit(outcome, process.limits) || (!by_us && lost_a_part(process, outcome))) {
    append_failed(outbox_.frames(), outcome.id, Failure::kNodeMemory,
                  "the kernel killed the program for want of memory, at " + std::to_string(outcome.peak_bytes >> 20) +
                      " MiB of its own " + std::to_string(process.limits.memory_bytes >> 20));
    return;
  }
  const auto wall = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - process.started);
  outcome.wall_us = static_cast<uint64_t>(wall.count());
  Request& request = process.request;
  const bool displays = (request.wants & kWantsDisplays) != 0;
  const bool files = displays || !request.fetch.empty();
  Answer answer{.outcome = std::move(outcome),
                .limits = process.limits,
                .out = process.out.kept().take(),
                .err = process.err.kept().take(),
                .value = process.value.take(),
                .directory = process.home->directory(),
                .most_file_bytes = files ? process.home->most_bytes(process.limits.file_bytes) : 0,
                .fetch = std::move(request.fetch),
                .displays = displays};
  if (answer.is_long()) {
    const auto long_one = std::make_shared<Answer>(std::move(answer));
    return answer_beside(process, [long_one](std::string& to) { long_one->append_to(to); });
  }
  const size_t before = outbox_.size();
  answer.append_to(outbox_.frames());
  if (lanes_.at(process.lane).waiting >= options_.max_live) outbox_.may_wait(before, Clock::now());
}

// It has a place until it is made, so that there are never more of them than places, and its lane's next one waits. Of
// its session nothing goes out before it.
void Supervisor::answer_beside(const Process& process, std::function<void(std::string&)> append) {
  const uint64_t session = process.session ? process.number : 0;
  if (process.session) behind_.try_emplace(session);
  const Turn turn = begin_turn(process.lane);
  uint64_t entries = process.session ? 0 : kMostWeighed;
  process.home->weigh(entries);
  const uint64_t leaving = process.session ? 0 : process.home->held_bytes(process.limits.file_bytes);
  leaving_bytes_ += leaving;
  const auto frames = std::make_shared<std::string>();
  // The home is released here, in the loop: it must outlive the worker's use of its directory.
  const auto end = [this, home = process.home, frames, session, turn, leaving] {
    outbox_.append(std::move(*frames));
    if (const auto behind = behind_.extract(session)) outbox_.frames() += behind.mapped();
    leaving_bytes_ -= leaving;
    end_turn(turn);
    starved_ = false;
  };
  outgoing_.take(process.lane, {[frames, append = std::move(append)] { append(*frames); }, end});
}

// Where frames about a session go.
std::string& Supervisor::frames_of(uint64_t session) {
  const auto found = behind_.find(session);
  return found == behind_.end() ? outbox_.frames() : found->second;
}

// What is freed has a turn among inputs.
constexpr uint64_t kNobodysLane = 0;

template <typename Memory>
void Supervisor::free_beside(Memory memory) {
  const auto kept = std::make_shared<Memory>(std::move(memory));
  incoming_.take(kNobodysLane, {[kept] { *kept = Memory(); }, [] {}});
}

template void Supervisor::free_beside(HeadTail);
template void Supervisor::free_beside(std::string);
template void Supervisor::free_beside(Text);

}  // namespace rocstar
