// Which lines of its children the supervisor watches: their pipes, and of a program the control socket as well.
//
// To be woken for a line of text costs the writer and the supervisor more than the text, and most programs and cells
// have ended before a pipe could be full: then one last reading finds everything. So nobody looks at what is younger
// than kYoung, and who fills a pipe sooner waits for that. A session between its cells is watched once it has rested as
// long, and who is followed always. Who is young no more also takes turns on the cores as everybody does (priority.h).
#include <sys/epoll.h>

#include "priority.h"
#include "process.h"

namespace rocstar {

// What it has begun now is young. A control socket that was watched for a birth rests by itself (EPOLLONESHOT).
void Supervisor::rest_lines(Process& process) {
  const bool at_work = !process.session || process.state == Process::State::kRunning;
  if (!at_work || (process.request.wants & kWantsOutput) != 0) return watch_lines(process);
  // Never watched before, a program's pipes need nothing; a session's do.
  const bool watched = process.session && !process.lines_rest;
  if (watched && process.out.fd() >= 0) watch(process.out.fd(), Source::kOut, process.index, process.generation, 0);
  if (watched && process.err.fd() >= 0) watch(process.err.fd(), Source::kErr, process.index, process.generation, 0);
  process.lines_rest = true;
  rest_longer(process, process.started);
}

// Lines that rest, for as long again.
void Supervisor::rest_longer(Process& process, Clock::time_point now) {
  process.rests_since = now;
  young_.push_back({now, process.index, process.generation});
}

void Supervisor::watch_lines(Process& process) {
  process.lines_rest = false;
  if (process.out.fd() >= 0) watch(process.out.fd(), Source::kOut, process.index, process.generation, EPOLLIN);
  if (process.err.fd() >= 0) watch(process.err.fd(), Source::kErr, process.index, process.generation, EPOLLIN);
  if (process.session || !process.control) return;  // a session's socket is always watched
  const uint32_t writes = process.watching_control_writes ? static_cast<uint32_t>(EPOLLOUT) : 0u;
  watch(process.control.get(), Source::kControl, process.index, process.generation, EPOLLIN | writes);
}

// Those that are young no more.
void Supervisor::watch_slow() {
  const Clock::time_point now = Clock::now();
  while (!young_.empty()) {
    const Young first = young_.front();
    Process& process = processes_[first.index];
    const bool rests =
        process.lines_rest && process.generation == first.generation && process.rests_since == first.since;
    if (rests && now < first.since + kYoung) return;
    young_.pop_front();
    if (!rests) continue;
    watch_lines(process);
    if (process.state == Process::State::kRunning) reset_slices(threads_of(process.pid));
  }
}

}  // namespace rocstar
