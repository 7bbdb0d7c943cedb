// How programs, sessions, cells and branches begin: descriptors made, a zygote ordered, the birth awaited, the code
// sent.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "compile.h"

namespace rocstar {
namespace {

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

// So that the program can open them by their names (/dev/stdout). Without it they work by their numbers alone.
void give_to(uint32_t uid, std::initializer_list<const UniqueFd*> pipes) {
  for (const UniqueFd* pipe : pipes) {
    [[maybe_unused]] const int given = uid == 0 ? 0 : fchown(pipe->get(), uid, uid);
  }
}

// A sealed file: the child can read and seek, and nothing it does can change or grow it.
UniqueFd make_stdin(std::string_view bytes) {
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

// Of one's own: the flags of an open file belong to all who share it, for as long as one of them lives.
UniqueFd open_null() {
  UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!file) fail("open(/dev/null)");
  return file;
}

UniqueFd open_input(const Request& request, Role role) {
  if (role == Role::kCompiler || (!request.input && request.stdin_bytes.empty())) return open_null();
  if (!request.input) return make_stdin(request.stdin_bytes);
  UniqueFd file(fcntl(request.input->get(), F_DUPFD_CLOEXEC, 0));
  if (!file) fail("fcntl(F_DUPFD_CLOEXEC)");
  return file;
}

}  // namespace

// Where it cannot be written now, its child's start says so.
void write_input(Request& request) {
  try {
    request.input = std::make_shared<UniqueFd>(make_stdin(request.stdin_bytes));
    request.stdin_bytes = {};
  } catch (const std::system_error&) {
  }
}

void Supervisor::order_child(Request request, Server& server) {
  const uint64_t id = request.id;
  Process* made = nullptr;
  try {
    Pair out = make_output(), err = make_output(), control = make_control();
    const Role role = role_of(request);
    const uint64_t memory = memory_needed(request);
    const UniqueFd input = open_input(request, role);
    const std::shared_ptr<Compiled> compiled = request.compiled;
    std::shared_ptr<Home> home = compiled ? compiled->home : homes_.take();
    const Limits& limits = request.limits;
    const bool session = request.type == FrameType::kOpen;
    ForkOrder order{.child = 0,
                    .role = role,
                    .session = session,
                    .has_scratch = home->directory() >= 0,
                    .uid = home->uid(),
                    .nice = options_.nice,
                    .limits = {.address_space_bytes = limits.memory_bytes,
                               .cpu_s = session ? RLIM_INFINITY - 1 : limits.cpu_s,
                               .file_bytes = limits.file_bytes},
                    .output_bytes = limits.output_bytes,
                    .directory = {}};
    if (role == Role::kCompiler) order.limits = compiler_rlimits(request);
    order.limits.processes = home->uid() == 0 ? 0u : has_descendants(role) ? kMostTasks : kMostThreads;
    if (order.has_scratch) home->name().copy(order.directory, sizeof order.directory - 1);
    if (role == Role::kShell || role == Role::kProgram) give_to(home->uid(), {&out.theirs, &err.theirs});
    std::vector<int> fds{input.get(), out.theirs.get(), err.theirs.get(), control.theirs.get()};
    UniqueFd ruleset;
    if (role == Role::kCompiler) ruleset = home->compiler_ruleset();
    if (role == Role::kShell) ruleset = home->shell_ruleset();
    if (compiled) ruleset = home->program_ruleset(compiled->program.get());
    if (ruleset || home->ruleset() >= 0) fds.push_back(ruleset ? ruleset.get() : home->ruleset());
    if (home->directory() >= 0) fds.push_back(home->directory());
    if (compiled) fds.push_back(compiled->program.get());
    Process& process = new_process(std::move(request), std::move(home));
    made = &process;
    process.out = Capture(std::move(out.ours), process.limits.output_bytes);
    process.err = Capture(std::move(err.ours), process.limits.output_bytes);
    process.value = HeadTail(process.limits.output_bytes);
    process.control = std::move(control.ours);
    process.server = &server;
    process.role = role;
    process.baseline_resident = role == Role::kInterpreter ? server.baseline_resident : 0;
    reserved_bytes_ += memory - process.reserved_bytes;
    process.reserved_bytes = memory;
    server.orders.insert(process.index);
    watch_birth(process);
    order.child = process.index;
    set_deadline(process, Clock::now() + kBirthGrace);
    try {
      send_message(server.socket.get(), {reinterpret_cast<const char*>(&order), sizeof order}, fds);
      if (role == Role::kInterpreter && !session && process.request.code.size() <= kSentAhead) send_cell(process);
    } catch (const std::system_error& error) {
      // A dying zygote's end is on the way, and finds this order among those to be given again.
      if (error.code().value() != EPIPE && error.code().value() != ECONNRESET) throw;
      server.ready = false;
    }
  } catch (const std::system_error& error) {
    if (made != nullptr && made->has_code) forestall_birth(*made);
    if (made != nullptr) return start_failed(*made, error.what());
    if (starve(request, error.code().value())) return;
    append_failed(outbox_.frames(), id, Failure::kChildStart, error.what());
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
  process.lane = process.request.lane;
  process.weight = process.request.weight;
  begin_work(process);
  process.opening = process.session;
  opening_ += process.session;
  return process;
}

// Of a program's line nothing else is looked for, until it is young no more (watched_fds.cpp).
void Supervisor::watch_birth(Process& process) {
  const uint32_t once = process.session ? 0u : static_cast<uint32_t>(EPOLLONESHOT);
  watch(process.control.get(), Source::kControl, process.index, process.generation, EPOLLIN | once);
}

// Nothing has happened yet: a zygote that died has taken the order or the unborn child along.
void Supervisor::give_again(Process& process) {
  if (process.has_code) forestall_birth(process);
  Request request = std::move(process.request);
  const bool cancelled = process.flags & kStopped;
  forget(process);
  expect_strangers();
  if (cancelled) {
    append_failed(outbox_.frames(), request.id, Failure::kCancelled, "cancelled before it started");
  } else if (++request.attempts > kMostDeaths) {
    append_failed(outbox_.frames(), request.id, Failure::kChildStart, "it ended before it was confined, each time");
  } else {
    enqueue(0, std::move(request));
  }
}

// It has its program already, and begins when it has said that it is born. Behind a line that is shut nobody can say so
// any more, and who has said it just before is killed: the program is to run once.
void Supervisor::forestall_birth(Process& process) {
  if (!process.control) return;
  shutdown(process.control.get(), SHUT_RDWR);
  Birth birth;
  bool again = false;
  const Message message =
      receive_message(process.control.get(), {reinterpret_cast<char*>(&birth), sizeof birth}, again);
  if (message.bytes != sizeof birth || birth.state != kReady) return;
  const pid_t pid = birth.what;
  if (!is_unknown_child(pid)) return;
  ::kill(pid, SIGKILL);
  ending_groups_.emplace_back(pid, process.home);
}

// Of all who have said that they are born, before anybody is taken for unknown.
void Supervisor::take_births() {
  for (const auto& server : servers_) {
    const std::set<uint32_t> orders = server->orders;
    for (const uint32_t index : orders) {
      if (processes_[index].control) take_birth(processes_[index]);
    }
  }
}

bool Supervisor::is_unknown_child(pid_t pid) const {
  siginfo_t info{};
  if (pid <= 0 || by_pid_.contains(pid)) return false;
  if (std::any_of(servers_.begin(), servers_.end(), [pid](const auto& one) { return one->pid == pid; })) return false;
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;  // else it is not ours
}

void Supervisor::take_birth(Process& process) {
  Birth birth;
  bool again = false;
  const Message message =
      receive_message(process.control.get(), {reinterpret_cast<char*>(&birth), sizeof birth}, again);
  if (again) return watch_birth(process);
  if (message.bytes == 0 && process.server != nullptr) {
    // Most often its zygote is dying, whose end gives all its orders again: to ask the same one would only cost tries.
    process.control.reset();
    return set_deadline(process, Clock::now() + kOrphanGrace);
  }
  if (message.bytes != sizeof birth) return start_failed(process, "the child ended before it was confined");
  if (birth.state != kReady) {
    return start_failed(process, "the child could not be confined: " + std::generic_category().message(birth.what));
  }
  // A zygote's child has run nothing of the user's by now. A branch has, so the kernel is asked who it is.
  const pid_t pid = process.origin != nullptr ? message.sender : birth.what;
  const bool related = process.origin == nullptr || getsid(pid) == process.origin->family;
  if (!related || !is_unknown_child(pid)) return start_failed(process, "the child is not whom it says it is");
  if (process.origin != nullptr && tied_.erase(pid) == 0) {
    ::kill(pid, SIGKILL);
    return start_failed(process, "the branch would outlive the supervisor");
  }
  process.pid = pid;
  process.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.pidfd) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    return start_failed(process, "pidfd_open: " + std::generic_category().message(error));
  }
  process.family = process.origin != nullptr ? process.origin->family : pid;
  by_pid_[process.pid] = process.index;
  const auto grant = process.origin != nullptr ? grants_.find(process.family) : grants_.end();
  if (grant != grants_.end() && --grant->second == 0) grants_.erase(grant);
  if (process.server != nullptr) process.server->orders.erase(process.index);
  process.server = nullptr;
  process.started = Clock::now();
  watch(process.pidfd.get(), Source::kPidfd, process.index, process.generation, EPOLLIN);
  rest_lines(process);
  if (process.flags & kStopped) {  // cancelled meanwhile: its end answers the request
    process.state = Process::State::kRunning;
    return kill(process, Outcome::kCancelled);
  }
  if (!process.session) {
    process.state = Process::State::kRunning;
    const bool compiler = process.role == Role::kCompiler;
    const uint64_t wall_us = compiler ? options_.compile_wall_us : process.limits.wall_us;
    set_deadline(process, process.started + std::chrono::microseconds(wall_us));
    if (!process.has_code) send_cell(process);
    return drop_texts(process);
  }
  if (process.origin != nullptr) {
    if (process.origin->state == Process::State::kBranching) return;  // told of when its origin can be used again
    process.origin->offspring = nullptr;
    process.origin = nullptr;
  }
  announce_session(process);
}

void Supervisor::announce_session(Process& process) {
  sessions_[process.number] = process.index;
  append_opened(outbox_.frames(), process.request.id);
  process.seed = process.request.seed;
  process.request = Request{};
  end_work(process);
  end_opening(process);
  rest(process);
  process.cpu_us_before = cpu_us_of(process.pid);
  count_held(process);
}

void Supervisor::end_opening(Process& process) {
  opening_ -= process.opening;
  process.opening = false;
}

// Nobody knows its pid: it sees the closed socket, if it lives, and is reaped as a stranger.
void Supervisor::start_failed(Process& process, const std::string& why) {
  if (process.pid > 0 && process.pidfd) {
    ::kill(process.pid, SIGKILL);  // a child of ours that is not reaped yet: the number is its own
  }
  const bool cancelled = process.flags & Outcome::kCancelled;
  append_failed(outbox_.frames(), process.request.id, cancelled ? Failure::kCancelled : Failure::kChildStart, why);
  expect_strangers();
  forget(process);
}

void Supervisor::start_cell(Request request, Process& session) {
  request.limits = {.wall_us = request.limits.wall_us,
                    .cpu_s = session.limits.cpu_s,
                    .memory_bytes = session.limits.memory_bytes,
                    .output_bytes = session.limits.output_bytes};
  request.seed = session.seed;
  session.request = std::move(request);
  wake(session);
  session.state = Process::State::kRunning;
  session.interrupted_before = session.interrupts > 0;
  session.interrupts = 0;
  session.flags = 0;
  session.shown[0] = session.shown[1] = 0;
  begin_work(session);
  reserved_bytes_ += session.limits.memory_bytes - session.reserved_bytes;
  session.reserved_bytes = session.limits.memory_bytes;
  session.started = session.last_used = Clock::now();
  session.cpu_us_before = cpu_us_of(session.pid);
  session.suspected_us = 0;
  rest_lines(session);
  set_cpu_limit(session, session.cpu_us_before, false);
  set_deadline(session, session.started + std::chrono::microseconds(session.request.limits.wall_us));
  send_cell(session);
  drop_texts(session);
}

void Supervisor::start_branch(Request request, Process& origin) {
  const uint64_t id = request.id;
  try {
    if (sessions_.size() + opening_ >= options_.max_sessions) {
      Process* victim = most_numerous_idle(&origin);
      if (victim == nullptr) {
        append_failed(outbox_.frames(), id, Failure::kFull, "there is no room for one more session");
        return;
      }
      close_session(victim->number, GoneWhy::kEvicted);
    }
    Pair out = make_output(), err = make_output(), control = make_control();
    const int on = 1;
    if (setsockopt(control.ours.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) fail("setsockopt(SO_PASSCRED)");
    const UniqueFd input = open_null();
    const int fds[4] = {input.get(), out.theirs.get(), err.theirs.get(), control.theirs.get()};
    const CellHeader header{CellKind::kBranch, 0, 0, 0};
    send_message(origin.control.get(), {reinterpret_cast<const char*>(&header), sizeof header}, fds);
    request.lane = origin.lane;
    request.weight = origin.weight;
    Process& process = new_process(std::move(request), origin.home);
    process.limits = origin.limits;
    process.out = Capture(std::move(out.ours), process.limits.output_bytes);
    process.err = Capture(std::move(err.ours), process.limits.output_bytes);
    process.value = HeadTail(process.limits.output_bytes);
    process.control = std::move(control.ours);
    process.baseline_resident = origin.baseline_resident;
    process.origin = &origin;
    origin.offspring = &process;
    origin.branch_granted = true;
    wake(origin);
    origin.state = Process::State::kBranching;
    set_deadline(origin, Clock::now() + kBranchGrace);
    set_deadline(process, Clock::now() + kBranchGrace);
    watch_birth(process);
  } catch (const std::system_error& error) {
    append_failed(outbox_.frames(), id, Failure::kChildStart, error.what());
  }
}

void Supervisor::send_cell(Process& process) {
  const Request& request = process.request;
  const auto flags = static_cast<uint8_t>((request.seed ? CellHeader::kHasSeed : 0) |
                                          (process.interrupted_before ? CellHeader::kAfterInterrupt : 0));
  const CellHeader header{CellKind::kRun, flags, request.seed.value_or(0), static_cast<uint32_t>(request.code.size())};
  process.to_send.assign(reinterpret_cast<const char*>(&header), sizeof header);
  process.code_to_send = request.code;
  if (request.code.size() <= kSentAhead) {
    process.to_send += request.code;
    process.code_to_send = {};
  }
  process.sent = 0;
  process.has_code = true;
  flush_control(process);
}

// Once it is born, nobody has to be given it again.
void Supervisor::drop_texts(Process& process) {
  process.request.code = {};
  if (process.role != Role::kCompiler) {
    process.request.stdin_bytes = {};
    process.request.input.reset();
  }
  process.has_code = false;
}

void Supervisor::flush_control(Process& process) {
  const std::string_view head = process.to_send, code = process.code_to_send;
  const size_t all = head.size() + code.size(), most = std::min(all, process.sent + kMostSent);
  while (process.sent < most) {
    const bool in_head = process.sent < head.size();
    const std::string_view part = in_head ? head.substr(process.sent) : code.substr(process.sent - head.size());
    const ssize_t n =
        send(process.control.get(), part.data(), std::min(part.size(), most - process.sent), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {  // it is dead or has closed its end: its own affair, and its end is told by the pidfd
      process.sent = all;
      break;
    }
    process.sent += static_cast<size_t>(n);
  }
  const bool more = process.sent < all;
  if (!more) {
    process.to_send = {};
    if (process.code_to_send.size() >= kLong) free_beside(std::exchange(process.code_to_send, {}));
    process.code_to_send = {};
  }
  if (more == process.watching_control_writes) return;
  process.watching_control_writes = more;
  watch(process.control.get(), Source::kControl, process.index, process.generation,
        more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

}  // namespace rocstar
