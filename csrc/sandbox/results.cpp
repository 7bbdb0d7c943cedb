// How results are put together and go out: short ones at once, long ones in a thread of their own
// (background_thread.h).
//
//   a program's end or a cell's --> report --+---------------- short ---------------> outbox
//                                            +-- long: keeps its place --> worker --> outbox, and what waited behind it
//
// What a long one is made of is the thread's until it is done: its process may be gone by then, or have its next cell.
#include <memory>
#include <utility>

#include "fetch.h"
#include "jobs.h"
#include "process.h"

namespace rocstar {
void ResultParts::append_to(std::string& to) {
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

void InputJob::run() { write_input(request); }

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
  ResultParts parts{.outcome = std::move(outcome),
                    .limits = process.limits,
                    .out = process.out.kept().take(),
                    .err = process.err.kept().take(),
                    .value = process.value.take(),
                    .directory = process.home->directory(),
                    .most_file_bytes = files ? process.home->most_bytes(process.limits.file_bytes) : 0,
                    .fetch = std::move(request.fetch),
                    .displays = displays};
  if (parts.is_long()) return answer_beside(process, std::move(parts));
  const size_t before = outbox_.size();
  parts.append_to(outbox_.frames());
  if (lanes_.at(process.lane).waiting >= options_.max_live) outbox_.may_wait(before, Clock::now());
}

// It has a place until it is made, so that there are never more of them than places, and its lane's next one waits. Of
// its session nothing goes out before it.
void Supervisor::answer_beside(const Process& process, ResultParts parts) {
  const uint64_t session = process.session ? process.number : 0;
  if (process.session) behind_.try_emplace(session);
  const Turn turn = begin_turn(process.lane);
  uint64_t entries = process.session ? 0 : kMostWeighed;
  process.home->weigh(entries);
  const uint64_t leaving = process.session ? 0 : process.home->held_bytes(process.limits.file_bytes);
  leaving_bytes_ += leaving;
  const auto job = std::make_shared<ResultJob>(std::move(parts));
  // The home is released here, in the loop: it must outlive the worker's use of its directory.
  const auto end = [this, home = process.home, job, session, turn, leaving] {
    outbox_.append(std::move(job->frames));
    if (const auto behind = behind_.extract(session)) outbox_.frames() += behind.mapped();
    leaving_bytes_ -= leaving;
    end_turn(turn);
    starved_ = false;
  };
  outgoing_.take(process.lane, job, end);
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
  incoming_.take(kNobodysLane, std::make_shared<FreeJob<Memory>>(std::move(memory)), [] {});
}

template void Supervisor::free_beside(HeadTail);
template void Supervisor::free_beside(std::string);
template void Supervisor::free_beside(Text);

}  // namespace rocstar
