// How programs and sessions answer and end: replies, limits, the last report.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "process.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace rocstar {
namespace {

uint64_t microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000 + static_cast<uint64_t>(time.tv_usec);
}

// Of a directory that is readable, and its two dots.
uint64_t entries_of(const char* path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path), closedir);
  uint64_t count = 0;
  while (folder && readdir(folder.get()) != nullptr) ++count;
  return count;
}

const char* why_stopped(uint32_t flags) {
  if (flags & Outcome::kTimedOut) return "it did not stop when its time was over";
  if (flags & Outcome::kOutputLimit) return "it wrote too much and did not stop";
  return flags & Outcome::kCancelled ? "it was cancelled and did not stop" : nullptr;
}

}  // namespace

uint64_t cpu_us_of(pid_t pid) {
  // The kernel's number for all of a process's time; clock_getcpuclockid() would first ask whether it is there.
  const auto clock = static_cast<clockid_t>(~static_cast<uint32_t>(pid) << 3 | 2);
  timespec used{};
  if (clock_gettime(clock, &used) != 0) return 0;
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000 + static_cast<uint64_t>(used.tv_nsec) / 1000;
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> found;
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%d/task", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    if (const int thread = std::atoi(entry->d_name); thread > 0) found.push_back(thread);
  }
  return found;
}

std::vector<pid_t> own_children() {
  std::vector<pid_t> found;
  char path[48];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), std::fclose);
  for (int pid; file && std::fscanf(file.get(), "%d", &pid) == 1;) found.push_back(pid);
  return found;
}

uint64_t held_bytes_of(pid_t pid, uint64_t baseline_resident) {
  // Pages of the zygote that a session has copied are resident either way: this much is assumed of them.
  constexpr uint64_t kCopied = 2 << 20;
  char path[32], text[128] = {};
  std::snprintf(path, sizeof path, "/proc/%d/statm", pid);
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file || read(file.get(), text, sizeof text - 1) <= 0) return kCopied;
  unsigned long size = 0, pages = 0;
  if (std::sscanf(text, "%lu %lu", &size, &pages) != 2) return kCopied;
  const uint64_t resident = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return kCopied + resident - std::min(resident, baseline_resident);
}

uint64_t line_bytes_of(pid_t pid) {
  constexpr uint64_t kUsual = 16, kEach = 320 << 10;  // a socket's buffer, and that others wait for it, a hundred times
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/fd", pid);
  struct stat info;
  if (stat(path, &info) != 0) return 0;
  auto count = static_cast<uint64_t>(info.st_size);  // from Linux 6.2 on
  if (count == 0) count = entries_of(path);
  return count > kUsual ? (count - kUsual) * kEach : 0;
}

Rest rest_of(uint64_t used_us, uint64_t before_us, uint64_t& suspected_us) {
  if (used_us <= before_us + kIdleCpuUs) return Rest::kCalm;
  if (suspected_us != 0) return used_us > suspected_us + kRestlessCpuUs ? Rest::kWorking : Rest::kCalm;
  suspected_us = used_us;
  return Rest::kSuspected;
}

void Supervisor::read_control(Process& process) {
  static char buffer[64 << 10];
  if (!process.control) return;  // read meanwhile, for somebody else's sake (take_births)
  if (process.state == Process::State::kStarting) return take_birth(process);
  const ssize_t got = read(process.control.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    process.control.reset();
    // A session that closes its own end can never answer again.
    if (process.session) break_with(process, "its line to the supervisor was closed");
    return;
  }
  take_value(process, {buffer, static_cast<size_t>(got)});
  if (process.value_bytes > output_cap(process) + sizeof(CellReply)) return kill(process, Outcome::kOutputLimit);
  if (process.session) take_replies(process);
}

void Supervisor::take_value(Process& process, std::string_view bytes) {
  process.value_bytes += bytes.size();
  const std::string_view word = bytes.substr(0, sizeof(CellReply) - process.word.size());
  process.word += word;
  process.value.append(process.session ? bytes.substr(word.size()) : bytes);
}

void Supervisor::forget_value(Process& process) {
  process.word.clear();
  process.value.clear();
  process.value_bytes = 0;
}

void Supervisor::take_replies(Process& process) {
  CellReply reply;
  if (process.word.size() < sizeof reply) return;
  std::memcpy(&reply, process.word.data(), sizeof reply);
  if (process.value_bytes < sizeof reply + reply.value_bytes) return;
  const bool alone = process.value_bytes == sizeof reply + reply.value_bytes;
  const bool branching = process.state == Process::State::kBranching && reply.kind == CellKind::kBranch;
  const bool running = process.state == Process::State::kRunning && reply.kind == CellKind::kRun;
  // A session that speaks out of turn is no partner any more: something in it writes to our socket.
  if (!alone || (!branching && !running)) {
    forget_value(process);
    return break_with(process, "it answered what it was not asked");
  }
  if (running) return finish_cell(process, reply);
  forget_value(process);
  process.branch_granted = false;
  rest(process);
  Process* offspring = process.offspring;
  if (offspring == nullptr) return;
  if (reply.code == 0 && offspring->pid <= 0) return;  // its birth is still to come, or its deadline
  process.offspring = offspring->origin = nullptr;
  if (reply.code != 0) {
    append_failed(outbox_.frames(), offspring->request.id, Failure::kCannotBranch,
                  reply.code == EBUSY ? "the session has running threads, which a fork would lose"
                                      : "the session cannot fork: " + std::generic_category().message(reply.code));
    abandon(*offspring);
  } else {
    announce_session(*offspring);
  }
  kill_strays();
}

void Supervisor::finish_cell(Process& session, const CellReply& reply) {
  // The reply was written after everything else that the cell wrote.
  // Once is enough, for a pipe holds no more than one reading takes, and a thread of it may go on writing for ever.
  for (Capture* stream : {&session.out, &session.err}) {
    take_output(session, *stream);
    if (stream->kept().total() > output_cap(session)) session.flags |= Outcome::kOutputLimit;
  }
  Outcome outcome{.id = session.request.id, .code = reply.code, .flags = session.flags};
  const uint64_t used = cpu_us_of(session.pid);
  outcome.cpu_us = used - std::min(used, session.cpu_us_before);
  outcome.peak_bytes = reply.peak_bytes - std::min(reply.peak_bytes, session.baseline_resident);
  report(session, std::move(outcome));
  forget_value(session);
  session.out.kept().clear();
  session.err.kept().clear();
  rest(session);
  if (session.lines_rest) rest_longer(session, session.last_used);
  session.flags = 0;
  session.request = Request{};
  end_work(session);
  session.cpu_us_before = used;
}

// Where the kernel does not let us (another user's process, without CAP_SYS_RESOURCE) the wall clock alone holds.
void Supervisor::set_cpu_limit(Process& session, uint64_t used_us, bool idle) {
  const uint64_t most_s = used_us / 1'000'000 + 1 + (idle ? 1 : session.limits.cpu_s);
  if (!session.has_cpu_limit || session.cpu_limit_s == most_s) return;
  const rlimit limit{.rlim_cur = most_s, .rlim_max = RLIM_INFINITY - 1};
  session.has_cpu_limit = prlimit(session.pid, RLIMIT_CPU, &limit, nullptr) == 0;
  session.cpu_limit_s = most_s;
}

// --- ending ------------------------------------------------------------------------------------------------

// As much as the result will show at most, and not what is between a session's cells: nobody follows that.
void Supervisor::show_output(Process& process, const Capture& stream, std::string_view bytes) {
  if ((process.request.wants & kWantsOutput) == 0 || process.state != Process::State::kRunning) return;
  const bool error = &stream == &process.err;
  uint64_t& shown = process.shown[error];
  bytes = bytes.substr(0, process.limits.output_bytes - std::min(shown, process.limits.output_bytes));
  shown += bytes.size();
  if (!bytes.empty()) append_output(outbox_.frames(), process.request.id, error ? 2 : 1, bytes);
}

void Supervisor::take_output(Process& process, Capture& stream) { show_output(process, stream, stream.drain()); }

void Supervisor::drain(Process& process, Capture& stream) {
  take_output(process, stream);
  // A session that was asked to stop has its grace for that, whatever it still writes.
  const bool asked = process.flags & Outcome::kOutputLimit;
  if (!asked && stream.kept().total() > output_cap(process)) stop(process, Outcome::kOutputLimit);
}

// The first reason stands. A session is asked first: it may keep its state.
void Supervisor::stop(Process& process, Outcome::Flag why) {
  if (process.state == Process::State::kStarting) {
    process.flags |= why;  // told when it is born
    return;
  }
  const uint32_t most = process.interrupted_before ? 2 : 1;
  const bool has_cell = process.session && process.state == Process::State::kRunning;
  if (has_cell && process.interrupts < most) return interrupt(process, why);
  kill(process, why);
}

void Supervisor::interrupt(Process& process, Outcome::Flag why) {
  if ((process.flags & kStopped) == 0) process.flags |= why;
  syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGINT, nullptr, 0);
  ++process.interrupts;
  const bool again = process.interrupted_before && process.interrupts == 1;
  set_deadline(process, Clock::now() + (again ? kInterruptAgain : kInterruptGrace));
}

void Supervisor::kill(Process& process, Outcome::Flag why) {
  if ((process.flags & kStopped) == 0) process.flags |= why;
  set_deadline(process, Clock::time_point::max());
  if (process.pidfd) syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
  kill_group(process);
}

// For those who wonder where their state is: by itself or killed, when, and what this loop had to do with it.
std::string Supervisor::ending_of(const Process& session, bool exited, int code) const {
  char how[160], when[80] = " between its cells";
  if (exited) {
    std::snprintf(how, sizeof how, "it exited with code %d", code);
  } else {
    std::snprintf(how, sizeof how, "it was killed by signal %d (%s)", code, strsignal(code));
  }
  if (session.state == Process::State::kRunning) {
    const std::chrono::duration<double> taken = Clock::now() - session.started;
    std::snprintf(when, sizeof when, " %.3f s into a cell that had %.3f s", taken.count(),
                  static_cast<double>(session.request.limits.wall_us) / 1e6);
  } else if (session.state == Process::State::kBranching) {
    std::snprintf(when, sizeof when, " while it was branched");
  }
  std::string text = how;
  text += when;
  const char* why = why_stopped(session.flags);
  if (why == nullptr) why = session.broken;
  if (exited || code != SIGKILL || why == nullptr) return text;
  text += ": ";
  return text += why;
}

// The first reason stands: whom we kill has its end of the line closed as well.
void Supervisor::break_with(Process& session, const char* why) {
  if (session.broken == nullptr) session.broken = why;
  kill(session, Outcome::Flag{0});
}

void Supervisor::reap(Process& process) {
  kill_group(process);
  siginfo_t info{};
  rusage usage{};
  const long done = syscall(SYS_waitid, P_PIDFD, process.pidfd.get(), &info, WEXITED | WNOHANG, &usage);
  if (done == 0 && info.si_pid == 0) return;
  if (done != 0) info = {};  // reaped by somebody else, which cannot be: it is gone all the same
  for (Capture* stream : {&process.out, &process.err}) {
    // What its pipe holds, and its end. A branch may have the same pipe and go on writing: not more than that.
    take_output(process, *stream);
    take_output(process, *stream);
    if (stream->kept().total() > output_cap(process)) process.flags |= Outcome::kOutputLimit;
  }
  char rest[4096];
  ssize_t got;
  while (process.control && !process.session && (got = read(process.control.get(), rest, sizeof rest)) > 0) {
    take_value(process, {rest, static_cast<size_t>(got)});
  }
  if (!process.session && process.value_bytes > output_cap(process)) process.flags |= Outcome::kOutputLimit;
  if (process.session) forget_value(process);  // a reply that it did not come to end
  if (process.state == Process::State::kRunning && process.role == Role::kCompiler) {
    end_compilation(process, info.si_code == CLD_EXITED, info.si_status);
  } else if (process.state == Process::State::kRunning && !could_not_start(process)) {
    Outcome outcome{.id = process.request.id,
                    .signaled = info.si_code != CLD_EXITED,
                    .code = info.si_status,
                    .flags = process.flags};
    const uint64_t used = microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
    outcome.cpu_us = std::max(used - std::min(used, process.cpu_us_before), process.group_cpu_us);
    const uint64_t peak = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
    outcome.peak_bytes = std::max(peak - std::min(peak, process.baseline_resident), process.group_peak_bytes);
    report(process, std::move(outcome));
  } else if (const Outcome end{.signaled = info.si_code != CLD_EXITED, .code = info.si_status, .flags = process.flags};
             was_killed_for_memory(process, end)) {
    process.broken = "the kernel took it for want of memory";
  }
  if (process.session && !process.lost && sessions_.erase(process.number) > 0) {
    if (process.flags & Outcome::kNoScratch) {
      append_gone(frames_of(process.number), process.number, GoneWhy::kEvicted);
    } else {
      append_gone(frames_of(process.number), process.number, GoneWhy::kDied,
                  ending_of(process, info.si_code == CLD_EXITED, info.si_status));
    }
  }
  if (process.state == Process::State::kStarting) {
    append_failed(outbox_.frames(), process.request.id, Failure::kChildStart, "the branch ended before it was ready");
  }
  if (Process* offspring = process.offspring) {
    append_failed(outbox_.frames(), offspring->request.id, Failure::kSessionLost,
                  "the session ended while it was branched");
    abandon(*offspring);
  }
  by_pid_.erase(process.pid);
  const bool session = process.session;
  expect_end_of_group(process);
  forget(process);
  if (session) kill_strays();
}

// An end by SIGKILL that nobody here sent, and the cgroup counts one more victim: the kernel took it for its memory.
bool Supervisor::was_killed_for_memory(const Process& process, const Outcome& outcome) {
  if (!outcome.signaled || outcome.code != SIGKILL || (outcome.flags & kStopped)) return false;
  return may_be_victim(process);
}

// Whether the cgroup has had a victim since this one's work began, and not long ago. The kernel does not say who it
// was, and one that ends itself in that moment may be heard of first: so all of them may be. Victims from before were
// others: idle sessions, or what nobody was asked for.
bool Supervisor::may_be_victim(const Process& process) {
  const uint64_t kills = look_for_victims();
  return kills > process.kills_before && Clock::now() < victim_seen_ + kVictimEnds;
}

uint64_t Supervisor::look_for_victims() {
  if (options_.cgroup == nullptr) return 0;
  const uint64_t kills = options_.cgroup->kills();
  if (kills > victims_) victim_seen_ = Clock::now();
  return victims_ = kills;
}

// Its end is nobody's news any more.
void Supervisor::abandon(Process& process) {
  if (process.pidfd) syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
  by_pid_.erase(process.pid);
  expect_strangers();
  forget(process);
}

void Supervisor::forget(Process& process) {
  starved_ = false;
  set_deadline(process, Clock::time_point::max());
  const bool counted = process.state == Process::State::kStarting || process.state == Process::State::kRunning;
  if (counted) end_work(process);
  end_opening(process);
  wake(process);
  reserved_bytes_ -= process.reserved_bytes;
  if (process.server != nullptr) process.server->orders.erase(process.index);
  if (process.origin != nullptr) process.origin->offspring = nullptr;
  const uint32_t index = process.index;
  const uint32_t generation = process.generation + 1;
  for (HeadTail* kept : {&process.out.kept(), &process.err.kept(), &process.value}) {
    if (kept->held() >= kLong) free_beside(kept->take());
  }
  if (process.code_to_send.size() >= kLong) free_beside(std::exchange(process.code_to_send, {}));
  process = Process{};
  process.index = index;
  process.generation = generation;
  free_.push_back(index);
}

// Somebody whom nobody here knows by its pid is about to end.
void Supervisor::expect_strangers() { strangers_until_ = Clock::now() + std::chrono::seconds(2); }

// The kernel's limit on CPU time can be ignored up to its hard value, which must stay above what later cells may use.
void Supervisor::look_at_sessions() {
  next_look_ = Clock::now() + kSessionsLook;
  std::vector<uint64_t> restless;
  for (const auto& [number, index] : sessions_) {
    Process& session = processes_[index];
    if (session.state != Process::State::kIdle) continue;
    const uint64_t used = cpu_us_of(session.pid);
    set_cpu_limit(session, used, true);
    const Rest rest = rest_of(used, session.cpu_us_before, session.suspected_us);
    if (rest == Rest::kSuspected) next_look_ = Clock::now() + kRestlessLook;
    if (rest == Rest::kWorking) restless.push_back(number);
  }
  for (const uint64_t number : restless) {
    close_session(number, GoneWhy::kDied, "it went on working between its cells and was killed");
  }
  weigh_sessions();
  if (homes_.has_scratch()) weigh_scratch();
  kill_strays();
}

// A thread of a session may take memory between cells. Who grew gives way, not who was there before.
void Supervisor::weigh_sessions() {
  std::vector<std::pair<uint64_t, uint64_t>> grown;  // by how much, number
  for (const auto& [number, index] : sessions_) {
    Process& session = processes_[index];
    if (session.state != Process::State::kIdle) continue;
    // Without processor time nobody takes memory.
    if (session.weighed && session.weighed_at_us == cpu_us_of(session.pid)) continue;
    const uint64_t before = session.reserved_bytes;
    count_held(session);
    if (session.reserved_bytes > before + kIdleGrowth) grown.emplace_back(session.reserved_bytes - before, number);
  }
  std::sort(grown.rbegin(), grown.rend());
  for (const auto& [bytes, number] : grown) {
    if (reserved_bytes_ <= options_.memory_bytes + options_.memory_bytes / 8) return;
    evict(processes_[sessions_.at(number)]);
  }
  while (reserved_bytes_ > options_.memory_bytes + options_.memory_bytes / 8) {
    Process* victim = heaviest_idle(nullptr);
    if (victim == nullptr) return;
    evict(*victim);
  }
}

// As many as one look has time for, those at work first, the others in their turn: what is known of the rest is from an
// earlier time.
void Supervisor::weigh_homes() {
  uint64_t entries = kEntriesALook;
  for (Process& process : processes_) {
    if (process.state == Process::State::kRunning) process.home->weigh(entries);
  }
  for (size_t seen = 0; seen < processes_.size() && entries > 0; ++seen) {
    last_weighed_ = (last_weighed_ + 1) % processes_.size();
    Process& process = processes_[last_weighed_];
    if (process.state == Process::State::kIdle) process.home->weigh(entries);
  }
}

// Idle sessions keep at most half of the scratch directories' room: the other half is for those at work.
void Supervisor::weigh_scratch() {
  const uint64_t most = homes_.scratch_bytes() / 2;
  const std::optional<uint64_t> taken = scratch_taken();
  if (homes_.used() == 0 || (taken && *taken <= most)) return;
  weigh_homes();
  std::vector<std::pair<uint64_t, uint64_t>> holders;  // by how much, number
  uint64_t held = 0;
  for (const auto& [number, index] : sessions_) {
    const Process& session = processes_[index];
    if (session.state != Process::State::kIdle) continue;
    holders.emplace_back(session.home->held_bytes(session.limits.file_bytes), number);
    held += holders.back().first;
  }
  std::sort(holders.rbegin(), holders.rend());
  for (const auto& [bytes, number] : holders) {
    if (held <= most) return;
    held -= bytes;
    evict(processes_[sessions_.at(number)]);
  }
}

// Nobody has to give way for what is about to be removed.
std::optional<uint64_t> Supervisor::scratch_taken() {
  const std::optional<uint64_t> taken = homes_.taken_bytes();
  return taken ? std::optional(*taken - std::min(*taken, leaving_bytes_)) : taken;
}

// What those at work have in their scratch directories, too, before the room is full: then a write that fails would be
// taken for a fault of whoever wrote.
void Supervisor::look_at_scratch() {
  const Clock::time_point now = Clock::now();
  const std::optional<uint64_t> taken = scratch_taken();
  next_scratch_look_ = now + (taken ? kScratchLook : std::chrono::duration_cast<Clock::duration>(kSessionsLook));
  const uint64_t most = homes_.scratch_bytes() / 4 * 3;
  if (taken && *taken <= most) return;
  weigh_homes();
  uint64_t seen = 0;
  std::set<const Home*> homes;
  for (const Process& process : processes_) {
    if (process.home && process.home->used() && homes.insert(process.home.get()).second) {
      seen += process.home->held_bytes(process.limits.file_bytes);
    }
  }
  const uint64_t held = taken.value_or(seen);
  if (held <= most) return;
  next_scratch_look_ = now + kScratchAgain;  // what is taken away is still there for a moment
  make_scratch_room(held, std::max(held - most, held / 4));
}

// Idle sessions give way first, those that hold most. Then, of the lane at work that holds most, who holds most. A file
// that has lost its name is not seen, but how many each has made is known.
void Supervisor::make_scratch_room(uint64_t held, uint64_t wanted) {
  struct Holder {
    uint64_t bytes;
    Process* process;
  };
  std::vector<Holder> idle, at_work;
  std::set<const Home*> homes;
  uint64_t seen = 0;
  for (Process& process : processes_) {
    const bool listed = process.state == Process::State::kIdle || process.state == Process::State::kRunning;
    if (!listed || !process.home->used() || (process.flags & kStopped)) continue;
    const uint64_t bytes = process.home->held_bytes(process.limits.file_bytes);
    if (homes.insert(process.home.get()).second) seen += bytes;
    (process.state == Process::State::kIdle ? idle : at_work).push_back({bytes, &process});
  }
  const bool unseen = held > 2 * seen;
  for (auto* holders : {&idle, &at_work}) {
    if (unseen) {
      for (Holder& one : *holders) one.bytes = one.process->home->most_bytes(one.process->limits.file_bytes);
    }
    std::sort(holders->begin(), holders->end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  }
  uint64_t made = 0;
  for (const Holder& one : idle) {
    if (made >= wanted) return;
    made += one.bytes;
    evict(*one.process);
  }
  if (made >= wanted || at_work.empty()) return;
  std::unordered_map<uint64_t, uint64_t> by_lane;
  for (const Holder& one : at_work) by_lane[one.process->lane] += one.bytes;
  const auto most = std::max_element(by_lane.begin(), by_lane.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const Holder& one : at_work) {
    if (one.process->lane == most->first) return kill(*one.process, Outcome::kNoScratch);
  }
}

void Supervisor::count_held(Process& session) {
  unweighed_ -= !session.weighed;
  session.weighed = true;
  session.weighed_at_us = cpu_us_of(session.pid);
  reserved_bytes_ -= session.reserved_bytes;
  const uint64_t held = held_bytes_of(session.pid, session.baseline_resident);
  session.reserved_bytes = std::min(held, session.limits.memory_bytes) + line_bytes_of(session.pid);
  reserved_bytes_ += session.reserved_bytes;
}

// What idle sessions hold is read when somebody needs it, and once a second: not after each cell, for most have another
// soon.
void Supervisor::weigh_idle() {
  if (unweighed_ == 0) return;
  for (const auto& [when, index] : idle_) {
    if (!processes_[index].weighed) count_held(processes_[index]);
  }
}

// A session may have spent the supervisor's leave to fork on a process that never says so. Nobody else's children are
// in a session's family (setsid is denied them), so whoever is there unknown is killed. Such a family is looked at
// until its last known process is gone, for the fork may come later than its leave.
void Supervisor::kill_strays() {
  if (grants_.empty()) return;
  std::set<pid_t> living;
  for (const Process& process : processes_) {
    if (process.session && process.family > 0) living.insert(process.family);
    if (process.origin != nullptr && process.pid <= 0) return;  // one is about to be born, and unknown until then
  }
  for (const pid_t pid : own_children()) {
    if (!grants_.contains(getsid(pid)) || !is_unknown_child(pid)) continue;
    ::kill(pid, SIGKILL);
    expect_strangers();
  }
  std::erase_if(grants_, [&living](const auto& grant) { return !living.contains(grant.first); });
  tied_.clear();
}

void Supervisor::reap_strangers() {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const pid_t pid = info.si_pid;
    const bool zygote =
        std::any_of(servers_.begin(), servers_.end(), [pid](const auto& one) { return one->pid == pid; });
    if (!zygote) take_births();
    if (zygote || by_pid_.contains(pid)) return;  // reaped on its pidfd; until then it hides the others
    const auto leader = by_pid_.find(getpgid(pid));
    rusage usage{};
    wait4(pid, nullptr, 0, &usage);
    if (leader != by_pid_.end()) {
      processes_[leader->second].orphans_cpu_us += microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
    }
    info = {};
  }
}

void Supervisor::kill_all() {
  starter_.close();
  for (const auto& server : servers_) {
    if (server->pid > 0) ::kill(server->pid, SIGKILL);
  }
  for (Process& process : processes_) {
    if (process.pidfd) syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
    if (process.family > 0) ::kill(-process.family, SIGKILL);
    process.control.reset();
    process.out = Capture();
    process.err = Capture();
  }
  for (const pid_t pid : own_children()) ::kill(pid, SIGKILL);
  // Those not seen see their closed socket. ECHILD: nobody is left.
  while (waitid(P_ALL, 0, nullptr, WEXITED) == 0 || errno == EINTR) {
  }
  processes_.clear();
}

}  // namespace rocstar
