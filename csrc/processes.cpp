// Programs and sessions: from the order to fork one until its report.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "process.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace rocstar {
namespace {

constexpr uint32_t kStopped = Outcome::kTimedOut | Outcome::kOutputLimit | Outcome::kCancelled;

uint64_t microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000 + static_cast<uint64_t>(time.tv_usec);
}

uint64_t hard_cap(const Limits& limits) {
  return kHardOutputFactor * std::max<uint64_t>(limits.output_bytes, kSmallestOutputCap);
}

struct Pair {
  UniqueFd ours, theirs;
};

Pair make_output() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
  Pair made{UniqueFd(ends[0]), UniqueFd(ends[1])};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) fail("fcntl(O_NONBLOCK)");
  return made;
}

Pair make_control() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  Pair made{UniqueFd(ends[0]), UniqueFd(ends[1])};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) fail("fcntl(O_NONBLOCK)");
  return made;
}

// A sealed file: the child can read and seek, and nothing it does can change or grow it.
UniqueFd make_stdin(const std::string& bytes) {
  UniqueFd file(memfd_create("stdin", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) fail("memfd_create");
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = pwrite(file.get(), bytes.data() + sent, bytes.size() - sent, static_cast<off_t>(sent));
    if (n < 0) fail("write to the memfd of stdin");
    sent += static_cast<size_t>(n);
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    fail("fcntl(F_ADD_SEALS)");
  }
  return file;
}

// What a session holds of its own. Linux counts shared pages out for us, to within the pages it has not touched.
uint64_t private_bytes_of(pid_t pid) {
  char path[32], text[128] = {};
  std::snprintf(path, sizeof path, "/proc/%d/statm", pid);
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file || read(file.get(), text, sizeof text - 1) <= 0) return 0;
  unsigned long size = 0, resident = 0, shared = 0;
  if (std::sscanf(text, "%lu %lu %lu", &size, &resident, &shared) != 3) return 0;
  return (resident - std::min(shared, resident)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

uint64_t cpu_us_of(pid_t pid) {
  clockid_t clock;
  timespec used{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000 + static_cast<uint64_t>(used.tv_nsec) / 1000;
}

// --- starting ----------------------------------------------------------------------------------------------

void Supervisor::order_child(Request request, Server& server) {
  const uint64_t id = request.id;
  try {
    Pair out = make_output(), err = make_output(), control = make_control();
    const UniqueFd input = request.stdin_bytes.empty() ? UniqueFd() : make_stdin(request.stdin_bytes);
    std::shared_ptr<Home> home = homes_.take();
    const Limits& limits = request.limits;
    const bool session = request.type == FrameType::kOpen;
    ForkOrder order{.child = 0,
                    .session = session,
                    .has_scratch = home->directory() >= 0,
                    .uid = home->uid(),
                    .limits = {.address_space_bytes = limits.memory_bytes,
                               .cpu_s = session ? RLIM_INFINITY - 1 : limits.cpu_s,
                               .file_bytes = limits.file_bytes,
                               .processes = home->uid() != 0 ? 64u : 0u}};
    std::vector<int> fds{input ? input.get() : null_.get(), out.theirs.get(), err.theirs.get(), control.theirs.get()};
    if (home->ruleset() >= 0) fds.push_back(home->ruleset());
    if (home->directory() >= 0) fds.push_back(home->directory());
    Process& process = new_process(std::move(request), std::move(home));
    process.out = Capture(std::move(out.ours), process.limits.output_bytes);
    process.err = Capture(std::move(err.ours), process.limits.output_bytes);
    process.control = std::move(control.ours);
    process.server = &server;
    process.baseline_resident = server.baseline_resident;
    server.orders.insert(process.index);
    watch(process.control.get(), Source::kControl, process.index, process.generation, EPOLLIN);
    order.child = process.index;
    try {
      send_message(server.socket.get(), {reinterpret_cast<const char*>(&order), sizeof order}, fds);
    } catch (const std::system_error&) {
      // The zygote is dying: its end is on the way, and finds this order among those to be given again.
    }
  } catch (const std::system_error& error) {
    append_failed(outbox_, id, Failure::kChildStart, error.what());
  }
}

Supervisor::Process& Supervisor::new_process(Request request, std::shared_ptr<Home> home) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(processes_.size()));
    processes_.emplace_back();
    processes_.back().index = free_.back();
  }
  Process& process = processes_[free_.back()];
  free_.pop_back();
  process.state = Process::State::kStarting;
  process.session = request.type != FrameType::kRun;
  process.number = process.session ? request.id : 0;
  if (request.type != FrameType::kBranch) process.limits = request.limits;
  process.home = std::move(home);
  process.request = std::move(request);
  process.reserved_bytes = process.limits.memory_bytes;
  reserved_bytes_ += process.reserved_bytes;
  ++under_way_;
  return process;
}

void Supervisor::take_birth(Process& process) {
  Birth birth;
  const ssize_t got = read(process.control.get(), &birth, sizeof birth);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got != sizeof birth) return start_failed(process, "the child ended before it was confined");
  if (birth.state != kReady) {
    return start_failed(process, "the child could not be confined: " + std::generic_category().message(birth.what));
  }
  process.pid = birth.what;
  process.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.pidfd) return start_failed(process, "pidfd_open: " + std::generic_category().message(errno));
  by_pid_[process.pid] = process.index;
  if (process.server != nullptr) process.server->orders.erase(process.index);
  process.server = nullptr;
  if (process.origin != nullptr) process.origin->offspring = nullptr;
  process.origin = nullptr;
  process.started = Clock::now();
  watch(process.pidfd.get(), Source::kPidfd, process.index, process.generation, EPOLLIN);
  watch(process.out.fd(), Source::kOut, process.index, process.generation, EPOLLIN);
  watch(process.err.fd(), Source::kErr, process.index, process.generation, EPOLLIN);
  if (process.flags & Outcome::kCancelled) return stop(process, Outcome::kCancelled);
  if (!process.session) {
    process.state = Process::State::kRunning;
    set_deadline(process, process.started + std::chrono::microseconds(process.limits.wall_us));
    return send_cell(process);
  }
  sessions_[process.number] = process.index;
  append_opened(outbox_, process.request.id);
  process.request = Request{.seed = process.request.seed};
  --under_way_;
  process.state = Process::State::kIdle;
  process.last_used = process.started;
  set_deadline(process, process.started + std::chrono::microseconds(options_.lease_us));
  reserved_bytes_ -= process.reserved_bytes;
  process.reserved_bytes = std::min(private_bytes_of(process.pid), process.limits.memory_bytes);
  reserved_bytes_ += process.reserved_bytes;
}

// Nobody knows its pid: it sees the closed socket, if it lives, and is reaped as a stranger.
void Supervisor::start_failed(Process& process, const std::string& why) {
  if (process.pid > 0 && process.pidfd) {
    ::kill(process.pid, SIGKILL);  // a child of ours that is not reaped yet: the number is its own
  }
  const bool cancelled = process.flags & Outcome::kCancelled;
  append_failed(outbox_, process.request.id, cancelled ? Failure::kCancelled : Failure::kChildStart, why);
  strangers_ = true;
  forget(process);
}

void Supervisor::start_cell(Request request, Process& session) {
  request.limits = {.wall_us = request.limits.wall_us,
                    .cpu_s = session.limits.cpu_s,
                    .memory_bytes = session.limits.memory_bytes,
                    .output_bytes = session.limits.output_bytes};
  session.request = std::move(request);
  session.state = Process::State::kRunning;
  session.flags = 0;
  ++under_way_;
  reserved_bytes_ += session.limits.memory_bytes - session.reserved_bytes;
  session.reserved_bytes = session.limits.memory_bytes;
  session.started = session.last_used = Clock::now();
  session.cpu_us_before = cpu_us_of(session.pid);
  set_cpu_limit(session, false);
  set_deadline(session, session.started + std::chrono::microseconds(session.request.limits.wall_us));
  send_cell(session);
}

void Supervisor::start_branch(Request request, Process& origin) {
  const uint64_t id = request.id;
  try {
    if (sessions_.size() >= options_.max_sessions) {
      Process* victim = least_recently_used();
      if (victim == nullptr || victim == &origin) {
        append_failed(outbox_, id, Failure::kFull, "there is no room for one more session");
        return;
      }
      close_session(victim->number, GoneWhy::kEvicted);
    }
    Pair out = make_output(), err = make_output(), control = make_control();
    const int fds[4] = {null_.get(), out.theirs.get(), err.theirs.get(), control.theirs.get()};
    const CellHeader header{CellKind::kBranch, 0, 0, 0};
    send_message(origin.control.get(), {reinterpret_cast<const char*>(&header), sizeof header}, fds);
    Process& process = new_process(std::move(request), origin.home);
    process.limits = origin.limits;
    process.out = Capture(std::move(out.ours), process.limits.output_bytes);
    process.err = Capture(std::move(err.ours), process.limits.output_bytes);
    process.control = std::move(control.ours);
    process.baseline_resident = origin.baseline_resident;
    process.origin = &origin;
    origin.offspring = &process;
    origin.branch_granted = true;
    origin.state = Process::State::kBranching;
    set_deadline(origin, Clock::now() + std::chrono::seconds(10));
    watch(process.control.get(), Source::kControl, process.index, process.generation, EPOLLIN);
  } catch (const std::system_error& error) {
    append_failed(outbox_, id, Failure::kChildStart, error.what());
  }
}

// --- the control socket ------------------------------------------------------------------------------------

void Supervisor::send_cell(Process& process) {
  const Request& request = process.request;
  const CellHeader header{CellKind::kRun, request.seed.has_value(), request.seed.value_or(0),
                          static_cast<uint32_t>(request.code.size())};
  process.to_send.assign(reinterpret_cast<const char*>(&header), sizeof header);
  process.to_send += request.code;
  process.sent = 0;
  process.request.code = {};
  process.request.stdin_bytes = {};
  flush_control(process);
}

void Supervisor::flush_control(Process& process) {
  while (process.sent < process.to_send.size()) {
    const ssize_t n = send(process.control.get(), process.to_send.data() + process.sent,
                           process.to_send.size() - process.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {  // it is dead or has closed its end: its own affair, and its end is told by the pidfd
      process.sent = process.to_send.size();
      break;
    }
    process.sent += static_cast<size_t>(n);
  }
  const bool more = process.sent < process.to_send.size();
  if (!more) process.to_send = {};
  if (more == process.watching_control_writes) return;
  process.watching_control_writes = more;
  watch(process.control.get(), Source::kControl, process.index, process.generation,
        more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Supervisor::read_control(Process& process) {
  static char buffer[64 << 10];
  if (process.state == Process::State::kStarting) return take_birth(process);
  if (!process.control) return;
  const ssize_t got = read(process.control.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    process.control.reset();
    // A session that closes its own end can never answer again.
    if (process.session) kill(process, Outcome::Flag{0});
    return;
  }
  process.value_bytes += static_cast<uint64_t>(got);
  if (process.value_bytes > hard_cap(process.limits) + sizeof(CellReply)) return kill(process, Outcome::kOutputLimit);
  process.value.append(buffer, static_cast<size_t>(got));
  if (process.session) take_replies(process);
}

void Supervisor::take_replies(Process& process) {
  CellReply reply;
  if (process.value.size() < sizeof reply) return;
  std::memcpy(&reply, process.value.data(), sizeof reply);
  if (process.value.size() < sizeof reply + reply.value_bytes) return;
  const std::string value = process.value.substr(sizeof reply, reply.value_bytes);
  const bool alone = process.value.size() == sizeof reply + reply.value_bytes;
  process.value.clear();
  process.value_bytes = 0;
  const bool branching = process.state == Process::State::kBranching && reply.kind == CellKind::kBranch;
  const bool running = process.state == Process::State::kRunning && reply.kind == CellKind::kRun;
  // A session that speaks out of turn is no partner any more: something in it writes to our socket.
  if (!alone || (!branching && !running)) return kill(process, Outcome::Flag{0});
  if (running) return finish_cell(process, reply, value);
  process.state = Process::State::kIdle;
  process.branch_granted = false;
  process.last_used = Clock::now();
  set_deadline(process, process.last_used + std::chrono::microseconds(options_.lease_us));
  Process* offspring = process.offspring;
  process.offspring = nullptr;
  if (offspring == nullptr || reply.code == 0) return;  // without an error its birth is still to come
  append_failed(outbox_, offspring->request.id, Failure::kCannotBranch,
                reply.code == EBUSY ? "the session has running threads, which a fork would lose"
                                    : "the session cannot fork: " + std::generic_category().message(reply.code));
  forget(*offspring);
}

void Supervisor::finish_cell(Process& session, const CellReply& reply, std::string_view value) {
  // The reply was written after everything else that the cell wrote.
  while (session.out.drain() || session.err.drain()) {
  }
  Outcome outcome{.id = session.request.id, .code = reply.code, .flags = session.flags};
  const uint64_t used = cpu_us_of(session.pid);
  outcome.cpu_us = used - std::min(used, session.cpu_us_before);
  outcome.peak_bytes = reply.peak_bytes - std::min(reply.peak_bytes, session.baseline_resident);
  HeadTail kept(session.limits.output_bytes);
  kept.append(value);
  outcome.value = kept.text();
  report(session, std::move(outcome));
  session.out.kept().clear();
  session.err.kept().clear();
  session.state = Process::State::kIdle;
  session.flags = 0;
  session.request = Request{};
  --under_way_;
  session.last_used = Clock::now();
  set_deadline(session, session.last_used + std::chrono::microseconds(options_.lease_us));
  reserved_bytes_ -= session.reserved_bytes;
  session.reserved_bytes = std::min(private_bytes_of(session.pid), session.limits.memory_bytes);
  reserved_bytes_ += session.reserved_bytes;
  set_cpu_limit(session, true);
}

// Where the kernel does not let us (another user's process, without CAP_SYS_RESOURCE) the wall clock alone holds.
void Supervisor::set_cpu_limit(const Process& process, bool idle) const {
  const uint64_t used_s = cpu_us_of(process.pid) / 1'000'000;
  const rlimit limit{.rlim_cur = used_s + 1 + (idle ? 1 : process.limits.cpu_s), .rlim_max = RLIM_INFINITY - 1};
  prlimit(process.pid, RLIMIT_CPU, &limit, nullptr);
}

// --- ending ------------------------------------------------------------------------------------------------

void Supervisor::drain(Process& process, Capture& stream) {
  stream.drain();
  if (stream.kept().total() > hard_cap(process.limits)) stop(process, Outcome::kOutputLimit);
}

// The first reason stands. A session is asked first: it may keep its state.
void Supervisor::stop(Process& process, Outcome::Flag why) {
  if (process.state == Process::State::kStarting) {
    process.flags |= why;  // told when it is born
    if (process.origin != nullptr) kill(*process.origin, Outcome::Flag{0});
    return;
  }
  const bool asked_already = process.flags & kStopped;
  if (process.session && process.state == Process::State::kRunning && !asked_already) return interrupt(process, why);
  kill(process, why);
}

void Supervisor::interrupt(Process& process, Outcome::Flag why) {
  process.flags |= why;
  syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGINT, nullptr, 0);
  set_deadline(process, Clock::now() + kInterruptGrace);
}

void Supervisor::kill(Process& process, Outcome::Flag why) {
  if ((process.flags & kStopped) == 0) process.flags |= why;
  set_deadline(process, Clock::time_point::max());
  if (process.pidfd) syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
}

void Supervisor::reap(Process& process) {
  siginfo_t info{};
  rusage usage{};
  const long done = syscall(SYS_waitid, P_PIDFD, process.pidfd.get(), &info, WEXITED | WNOHANG, &usage);
  if (done != 0) fail("waitid");
  if (info.si_pid == 0) return;
  for (Capture* stream : {&process.out, &process.err}) {
    // A dead child's pipe holds at most its capacity: this ends.
    while (stream->drain()) {
    }
    if (stream->kept().total() > hard_cap(process.limits)) process.flags |= Outcome::kOutputLimit;
  }
  char rest[4096];
  ssize_t got;
  while (process.control && !process.session && (got = read(process.control.get(), rest, sizeof rest)) > 0) {
    process.value.append(rest, static_cast<size_t>(got));
  }
  if (process.state == Process::State::kRunning) {
    Outcome outcome{.id = process.request.id,
                    .signaled = info.si_code != CLD_EXITED,
                    .code = info.si_status,
                    .flags = process.flags};
    const uint64_t used = microseconds(usage.ru_utime) + microseconds(usage.ru_stime);
    outcome.cpu_us = used - std::min(used, process.cpu_us_before);
    const uint64_t peak = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
    outcome.peak_bytes = peak - std::min(peak, process.baseline_resident);
    if (!process.session) {
      HeadTail kept(process.limits.output_bytes);
      kept.append(process.value);
      outcome.value = kept.text();
    }
    report(process, std::move(outcome));
  }
  if (process.session && !process.lost && sessions_.erase(process.number) > 0) {
    append_gone(outbox_, process.number, GoneWhy::kDied);
  }
  if (Process* offspring = process.offspring) {
    append_failed(outbox_, offspring->request.id, Failure::kSessionLost, "the session ended while it was branched");
    forget(*offspring);
    strangers_ = true;
  }
  by_pid_.erase(process.pid);
  forget(process);
}

void Supervisor::report(Process& process, Outcome outcome) {
  if (outcome.flags & Outcome::kCancelled) {
    append_failed(outbox_, outcome.id, Failure::kCancelled, "cancelled");
    return;
  }
  const auto wall = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - process.started);
  outcome.wall_us = static_cast<uint64_t>(wall.count());
  outcome.out = process.out.kept().text();
  outcome.err = process.err.kept().text();
  if (process.out.kept().truncated()) outcome.flags |= Outcome::kStdoutTruncated;
  if (process.err.kept().truncated()) outcome.flags |= Outcome::kStderrTruncated;
  if (!outcome.value.empty()) outcome.flags |= Outcome::kHasValue;
  append_result(outbox_, outcome, status_of(outcome, process.limits));
}

void Supervisor::forget(Process& process) {
  set_deadline(process, Clock::time_point::max());
  const bool counted = process.state == Process::State::kStarting || process.state == Process::State::kRunning;
  if (counted) --under_way_;
  reserved_bytes_ -= process.reserved_bytes;
  if (process.server != nullptr) process.server->orders.erase(process.index);
  if (process.origin != nullptr) process.origin->offspring = nullptr;
  const uint32_t index = process.index;
  const uint32_t generation = process.generation + 1;
  process = Process{};
  process.index = index;
  process.generation = generation;
  free_.push_back(index);
}

void Supervisor::reap_strangers() {
  strangers_ = false;
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const pid_t pid = info.si_pid;
    const bool zygote =
        std::any_of(servers_.begin(), servers_.end(), [pid](const auto& one) { return one->pid == pid; });
    if (zygote || by_pid_.contains(pid)) {  // reaped on its pidfd; until then it hides the others
      strangers_ = true;
      return;
    }
    waitid(P_PID, static_cast<id_t>(pid), nullptr, WEXITED);
    info = {};
  }
}

void Supervisor::kill_all() {
  for (const auto& server : servers_) {
    if (server->pid > 0) ::kill(server->pid, SIGKILL);
  }
  for (Process& process : processes_) {
    if (process.pidfd) syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
    process.control.reset();
    process.out = Capture();
    process.err = Capture();
  }
  // Strangers see their closed socket. ECHILD: nobody is left.
  while (waitid(P_ALL, 0, nullptr, WEXITED) == 0 || errno == EINTR) {
  }
  processes_.clear();
}

}  // namespace rocstar
