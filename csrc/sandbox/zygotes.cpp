// The supervisor's side of its fork servers: starting, restarting, and answering what the kernel asks for children.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cpp_child.h"
#include "process.h"
#include "shell_child.h"
#include "zygote.h"

namespace rocstar {
namespace {

// A line of a thread's status, -1 if that cannot be told.
int status_of_thread(pid_t thread, const char* format) {
  char path[48], line[128];
  std::snprintf(path, sizeof path, "/proc/%d/status", thread);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), std::fclose);
  int found = -1;
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (std::sscanf(line, format, &found) == 1) break;
  }
  return found;
}

int threads_of_process(pid_t thread) { return status_of_thread(thread, "Threads: %d"); }

// As JSON. What a flavour is at is told in words of ours and names of modules.
std::string quoted(const std::string& text) {
  std::string found = "\"";
  for (const char c : text) found += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return found + '"';
}

std::string moment_of(const std::string& at) { return at.empty() ? " before Python ran" : " while " + at; }

}  // namespace

pid_t process_id_of(pid_t thread) { return status_of_thread(thread, "Tgid: %d"); }

void Supervisor::start_zygote(Server& server) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  server.socket.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) fail("fcntl(O_NONBLOCK)");
  const pid_t pid = starter_.start(server.flavour, theirs.get());
  ++server.generation;
  server.pid = pid;
  server.ready = false;
  server.late = Clock::now() + std::chrono::microseconds(options_.zygote_start_us);
  server.at.clear();
  server.unfit.clear();
  server.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!server.pidfd) fail("pidfd_open");
  watch(server.socket.get(), Source::kZygote, server.index, server.generation, EPOLLIN);
  watch(server.pidfd.get(), Source::kZygoteEnd, server.index, server.generation, EPOLLIN);
}

void Supervisor::read_zygote(Server& server) {
  static char buffer[64 << 10];
  bool again = false;
  Message message = receive_message(server.socket.get(), buffer, again);
  if (again) return;
  if (message.bytes == 0) {  // its end follows on the pidfd
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, server.socket.get(), nullptr);
    return;
  }
  const std::string_view rest(buffer + 1, message.bytes - 1);
  switch (static_cast<ZygoteWord>(buffer[0])) {
    case ZygoteWord::kHello:
      return take_hello(server, rest);
    case ZygoteWord::kListener:
      if (message.fds.size() != 1) return;
      watch(message.fds[0].get(), Source::kListener, next_listener_, 0, EPOLLIN);
      listeners_.emplace(next_listener_++, std::move(message.fds[0]));
      return;
    case ZygoteWord::kFatal:
      return cannot_be(server, rest);
    case ZygoteWord::kAt:
      server.at = std::string(rest);
      return;
    case ZygoteWord::kForkError: {
      ForkError error;
      if (rest.size() != sizeof error) return;
      std::memcpy(&error, rest.data(), sizeof error);
      if (server.orders.contains(error.child)) {
        start_failed(processes_[error.child], "cannot fork: " + std::generic_category().message(error.error));
      }
      return;
    }
  }
}

void Supervisor::take_hello(Server& server, std::string_view rest) {
  if (rest.size() < sizeof server.baseline_resident || !server.unfit.empty()) return;  // too late: it was killed
  std::memcpy(&server.baseline_resident, rest.data(), sizeof server.baseline_resident);
  server.ready = true;
  server.deaths = server.same_deaths = 0;
  server.death.clear();
  append_zygote(outbox_.frames(), server.flavour, static_cast<uint64_t>(server.pid));
  const bool all = std::all_of(servers_.begin(), servers_.end(), [](const auto& one) { return one->ready; });
  if (all && !said_hello_) say_hello();
}

void Supervisor::say_hello() {
  said_hello_ = true;
  append_json(outbox_.frames(), FrameType::kHello, options_.hello_json);
}

void Supervisor::zygote_ended(Server& server) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(server.pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return;
  // What it said before it died is still in the socket: a reason, perhaps.
  char peek;
  while (client_open_ && recv(server.socket.get(), &peek, 1, MSG_PEEK | MSG_DONTWAIT) > 0) read_zygote(server);
  if (client_open_ && !server.ready && server.unfit.empty()) died_early(server, info);
  look_for_victims();  // it may be one
  take_births();
  // A child may have been forked without anybody having heard of it: it finds its control socket closed and exits.
  const std::set<uint32_t> lost = std::move(server.orders);
  server.orders.clear();
  for (const uint32_t index : lost) give_again(processes_[index]);
  if (!client_open_) return;
  if (server.unfit.empty()) {
    start_zygote(server);
  } else {
    rest_unfit(server);
  }
}

// Those that a pool starts with are its own affair: it waits for them.
bool Supervisor::may_be_late(const Server& server) const {
  return said_hello_ && server.pid > 0 && !server.ready && server.unfit.empty();
}

void Supervisor::end_late_zygotes(Clock::time_point now) {
  for (const auto& server : servers_) {
    if (!may_be_late(*server) || now < server->late) continue;
    const std::string& flavour = options_.flavours[server->flavour];
    server->unfit = R"({"kind": "zygote_start", "retryable": true, "message": )" +
                    quoted("the " + flavour + " zygote was not ready after " +
                           std::to_string(options_.zygote_start_us / 1'000'000) + " s" + moment_of(server->at) +
                           ": it hangs, or this machine has too much to do") +
                    "}";
    syscall(SYS_pidfd_send_signal, server->pidfd.get(), SIGKILL, nullptr, 0);  // its end follows
  }
}

// It is tried again, for what killed it may pass, unless it may not: then the pool is told, and this ends.
void Supervisor::died_early(Server& server, const siginfo_t& info) {
  const bool exited = info.si_code == CLD_EXITED;
  std::string death = exited ? "it exited with code " : "it was killed by signal ";
  death += std::to_string(info.si_status);
  if (!exited) death += " (" + std::string(strsignal(info.si_status)) + ")";
  death += moment_of(server.at);
  server.same_deaths = death == server.death ? server.same_deaths + 1 : 1;
  server.death = death;
  const bool from_outside = !exited && info.si_status == SIGKILL;  // for want of memory, say
  const bool for_good = !from_outside && server.same_deaths >= kMostSameDeaths;
  if (++server.deaths < kMostDeaths && !for_good) return;
  const std::string& flavour = options_.flavours[server.flavour];
  std::string fix = "mend it, or leave the flavour out: what it said is on standard error";
  if (server.at.empty()) fix = "see whether `env -i PYTHON -c pass` runs, with no variable of this environment";
  if (from_outside) fix = "see whether this machine has memory for it";
  cannot_be(server, "{\"kind\": \"zygote_start\", \"retryable\": " + std::string(for_good ? "false" : "true") +
                        ", \"message\": " +
                        quoted("the " + flavour + " zygote died while starting, " + std::to_string(server.deaths) +
                               " times: " + death + "; " + fix) +
                        "}");
}

// A pool that has never had all its flavours is refused. Later, also of another supervisor, it is the affair of the
// calls that want this one: what a zygote imports may have been taken away, and others do not need it.
void Supervisor::cannot_be(Server& server, std::string_view why) {
  if (said_hello_) {
    server.unfit = why;
    return;
  }
  append_json(outbox_.frames(), FrameType::kFatal, why);
  flush_client();
  client_open_ = false;
}

void Supervisor::rest_unfit(Server& server) {
  ++server.generation;  // events of what is closed here are stale
  server.pid = -1;
  server.socket.reset();
  server.pidfd.reset();
  server.deaths = server.same_deaths = 0;
  server.death.clear();
  server.again = Clock::now() + kUnfitRest;
  ++unfit_;
  fail_unserved(server.flavour);
}

// Somebody asks for the flavour.
void Supervisor::try_unfit(uint8_t flavour) {
  for (const auto& server : servers_) {
    if (server->flavour != flavour || server->pid > 0 || Clock::now() < server->again) continue;
    --unfit_;
    start_zygote(*server);
  }
  fail_unserved(flavour);
}

// Calls of a flavour that has no zygote, and none that is starting.
void Supervisor::fail_unserved(uint8_t flavour) {
  const Server* unfit = nullptr;
  for (const auto& server : servers_) {
    if (server->flavour != flavour) continue;
    if (server->pid > 0) return;
    unfit = server.get();
  }
  Queue& queue = pending_[flavour];
  while (unfit != nullptr && !queue.empty()) {
    const Request request = dequeue(queue, queue.begin());
    append_failed(outbox_.frames(), request.id, Failure::kZygoteStart, unfit->unfit);
    forget_lane(request.lane);
  }
}

Supervisor::Server* Supervisor::server_for(uint8_t flavour) {
  Server* best = nullptr;
  for (const auto& server : servers_) {
    if (server->flavour != flavour || !server->ready || server->orders.size() >= kMostOrders) continue;
    if (best == nullptr || server->orders.size() < best->orders.size()) best = server.get();
  }
  return best;
}

void Supervisor::read_listener(uint32_t index, uint32_t events) {
  const auto found = listeners_.find(index);
  if (found == listeners_.end()) return;
  if (events & EPOLLIN) answer_question(found->second.get(), [this](const Question& asked) { return judge(asked); });
  if (events & EPOLLHUP) listeners_.erase(found);  // nobody is left who could ask
}

int Supervisor::judge(const Question& question) {
  if (question.kind == Question::Kind::kTie) {
    if (question.target == 0) return EINVAL;
    if (is_unknown_child(question.thread)) tied_.insert(question.thread);
    return 0;
  }
  Process* process = process_of_thread(question.thread);
  if (process == nullptr) {  // it may ask before its birth was heard of
    take_births();
    process = process_of_thread(question.thread);
  }
  switch (question.kind) {
    case Question::Kind::kSignal: {
      if (process != nullptr && process->role == Role::kShell) return signal_for(*process, question);
      const pid_t own = process == nullptr ? question.thread : process->pid;
      return question.target == own ? 0 : EPERM;
    }
    case Question::Kind::kCreate:
      if (process == nullptr) return EROFS;
      return process->home->may_create(most_creations(*process), [&] { return holders_of(*process); }) ? 0 : EDQUOT;
    case Question::Kind::kBranch:
      if (process == nullptr || question.thread != process->pid || !process->branch_granted) return EPERM;
      process->branch_granted = false;
      ++grants_[process->family];
      return 0;
    case Question::Kind::kThread:
      if (process != nullptr && process->role == Role::kShell) return may_have_task(*process) ? 0 : EAGAIN;
      // Those that ask at the same time are counted before any of them has started: at most twice as many come of it.
      return static_cast<uint32_t>(threads_of_process(question.thread)) < kMostThreads ? 0 : EAGAIN;
    case Question::Kind::kProcess:
      if (process == nullptr || process->role != Role::kShell) return EPERM;
      return may_have_task(*process) ? 0 : EAGAIN;
    case Question::Kind::kTie:
      break;  // above
  }
  return EPERM;
}

uint64_t Supervisor::most_creations(const Process& process) {
  if (process.role == Role::kCompiler) return kCompilerFiles;
  return process.limits.files * (process.role == Role::kShell ? kShellFiles : 1);
}

// A session and its branches share a directory; a shell program's processes are known by their group.
std::vector<pid_t> Supervisor::holders_of(const Process& process) {
  if (has_descendants(process.role)) return use_of_group(process.pid).members;
  std::vector<pid_t> found;
  for (const Process& one : processes_) {
    if (one.home == process.home && one.pid > 0) found.push_back(one.pid);
  }
  return found;
}

Supervisor::Process* Supervisor::process_of_thread(pid_t thread) {
  if (const auto found = by_pid_.find(thread); found != by_pid_.end()) return &processes_[found->second];
  if (const auto found = by_pid_.find(process_id_of(thread)); found != by_pid_.end()) return &processes_[found->second];
  // Descendants are known by their group.
  if (const auto found = by_pid_.find(getpgid(thread)); found != by_pid_.end()) {
    Process& leader = processes_[found->second];
    if (has_descendants(leader.role)) return &leader;
  }
  return nullptr;
}

}  // namespace rocstar
