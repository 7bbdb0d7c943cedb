// Compilers and bash programs: the only children with descendants. None of these can leave its process group, whose
// number is the child's pid, so that one signal ends them all; the supervisor is their subreaper and takes what is left
// of them. The kernel limits each process by itself; what a program's processes have together is looked at from here:
// processor time and memory every kGroupWatch, and how many there are before each new one, where the kernel does not
// count those (rlimits.h). What an orphan has used is added when it is reaped here; of a process that the kernel reaps
// for its parent (SIGCHLD ignored) only what a look has seen, so that the wall clock is what bounds such programs. A
// signal to another process of the group is sent by the supervisor, who holds the process while it looks whose it is:
// between an answer and the kernel's own look the number could become a stranger's.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "process.h"

namespace rocstar {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

// A line of /proc; what can be had of a process that ends meanwhile, perhaps nothing.
File open_of(pid_t pid, const char* name) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  return {std::fopen(path, "re"), std::fclose};
}

// Of all threads of a process: each thread's children are listed with it.
void append_children(pid_t pid, std::vector<pid_t>& to) {
  for (const pid_t thread : threads_of(pid)) {
    char name[48];
    std::snprintf(name, sizeof name, "task/%d/children", thread);
    const File file = open_of(pid, name);
    for (int child; file && std::fscanf(file.get(), "%d", &child) == 1;) to.push_back(child);
  }
}

// More than a program can have, so that a list that grows while it is read ends.
constexpr size_t kMostMembers = 4096;

std::vector<pid_t> members_of(pid_t group) {
  std::vector<pid_t> found;
  for (const pid_t pid : own_children()) {
    if (getpgid(pid) == group) found.push_back(pid);
  }
  for (size_t next = 0; next < found.size() && found.size() < kMostMembers; ++next) {
    append_children(found[next], found);
  }
  return found;
}

// In clock ticks: its own and that of its children that it has waited for.
uint64_t ticks_of(pid_t pid, uint32_t& threads) {
  const File file = open_of(pid, "stat");
  char text[1024];
  const size_t got = file ? std::fread(text, 1, sizeof text - 1, file.get()) : 0;
  text[got] = '\0';
  const char* const rest = std::strrchr(text, ')');  // the name may hold anything
  unsigned long user = 0, system = 0;
  long waited_user = 0, waited_system = 0, number = 0;
  if (rest == nullptr ||
      std::sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld %*d %*d %ld", &user, &system,
                  &waited_user, &waited_system, &number) != 5) {
    return 0;
  }
  threads += static_cast<uint32_t>(std::max(number, 0L));
  return user + system + static_cast<uint64_t>(waited_user + waited_system);
}

// Not of files. Pages that a fork shares count for each that has them: see exact_bytes_of.
uint64_t bytes_of(pid_t pid) {
  const File file = open_of(pid, "statm");
  unsigned long size = 0, resident = 0, shared = 0;
  if (!file || std::fscanf(file.get(), "%lu %lu %lu", &size, &resident, &shared) != 3) return 0;
  return (resident - std::min(resident, shared)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Shared pages divided among those who share them. Ten times as dear to ask for.
uint64_t exact_bytes_of(pid_t pid) {
  const File file = open_of(pid, "smaps_rollup");
  char line[256];
  unsigned long kib = 0;
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (std::sscanf(line, "Pss_Anon: %lu kB", &kib) == 1) return uint64_t{kib} << 10;
  }
  return bytes_of(pid);
}

// Of this thread. What a look takes by the clock is mostly others' doing on a busy machine.
std::chrono::nanoseconds processor_time() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace

GroupUse use_of_group(pid_t group) {
  static const auto kTick = static_cast<uint64_t>(1'000'000 / sysconf(_SC_CLK_TCK));
  GroupUse use{.members = members_of(group)};
  for (const pid_t pid : use.members) {
    use.cpu_us += ticks_of(pid, use.tasks) * kTick;
    use.bytes += bytes_of(pid);
  }
  return use;
}

bool Weighing::go_on() {
  const auto before = processor_time();
  while (!left.empty() && processor_time() - before < kWeighing) {
    bytes += exact_bytes_of(left.back());
    left.pop_back();
  }
  return left.empty();
}

bool Supervisor::is_shell(uint8_t flavour) const { return options_.flavours[flavour] == "bash"; }

// At one of them, those in their turn: between two others are served.
void Supervisor::look_at_groups() {
  const auto before = processor_time();
  int number = 0;
  Process* next = nullptr;  // the first behind the one that was looked at last, or the first of all
  for (Process& process : processes_) {
    if (process.role != Role::kShell || process.state != Process::State::kRunning || (process.flags & kStopped))
      continue;
    ++number;
    const bool is_later = process.index > last_group_, is_next_later = next != nullptr && next->index > last_group_;
    if (next == nullptr || (is_later && !is_next_later)) next = &process;
  }
  if (next != nullptr) {
    last_group_ = next->index;
    look_at_group(*next);
  }
  const auto rest =
      std::max<Clock::duration>(kGroupWatch / std::max(number, 1), kGroupRest * (processor_time() - before));
  next_group_watch_ = Clock::now() + rest;
}

void Supervisor::look_at_time_of(Process& process) {
  if (process.group_cpu_us > process.limits.cpu_s * 1'000'000) kill(process, Outcome::kTimedOut);
}

void Supervisor::look_at_group(Process& process) {
  expect_strangers();  // its orphans are ours, and it may have no others while they are not reaped
  const uint64_t limit = process.limits.memory_bytes;
  GroupUse use = use_of_group(process.pid);
  process.group_cpu_us = std::max(process.group_cpu_us, use.cpu_us + process.orphans_cpu_us);
  if (use.bytes > limit) {
    if (process.weighing.left.empty()) process.weighing = {.left = std::move(use.members)};
    if (!process.weighing.go_on()) return look_at_time_of(process);
    use.bytes = process.weighing.bytes;
  }
  process.weighing = {};
  process.group_peak_bytes = std::max(process.group_peak_bytes, use.bytes);
  if (use.bytes > limit) return kill(process, Outcome::kMemoryKilled);
  look_at_time_of(process);
}

// Those that were granted since they were counted are counted too: they may not have begun.
bool Supervisor::may_have_task(Process& process) {
  const Clock::time_point now = Clock::now();
  const bool full = process.tasks >= kMostTasks;
  const auto holds = std::max<Clock::duration>(full ? kRecountFull : kRecountTasks, kGroupRest * process.tasks_cost);
  if (now - process.tasks_counted > holds) {
    const auto before = processor_time();
    process.tasks = use_of_group(process.pid).tasks;
    process.tasks_cost = processor_time() - before;
    process.tasks_counted = now;
  }
  if (process.tasks >= kMostTasks) return false;
  ++process.tasks;
  return true;
}

// To processes of its own, one at a time: `timeout` of the tools signals the group that it thinks is its own. To
// everybody else it is as if they were not there.
int Supervisor::signal_for(const Process& process, const Question& question) {
  if (question.to_thread) return question.target == process_id_of(question.thread) ? 0 : ESRCH;
  if (question.target <= 0) return EPERM;
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, question.target, 0)));
  const bool own = handle && getpgid(question.target) == process.pid;
  // It is still there, so the number was its own when it was looked up.
  if (!own || syscall(SYS_pidfd_send_signal, handle.get(), 0, nullptr, 0) != 0) return ESRCH;
  if (syscall(SYS_pidfd_send_signal, handle.get(), question.signal, nullptr, 0) != 0) return errno;
  return kDone;
}

// The kernel may have taken a part of a group for want of memory, and its leader have gone on without it.
bool Supervisor::lost_a_part(const Process& process, const Outcome& outcome) {
  if (process.role != Role::kShell || (outcome.flags & kStopped)) return false;
  const bool fell_short = outcome.signaled || outcome.code != 0;
  return fell_short && may_be_victim(process);
}

void Supervisor::kill_group(const Process& process) {
  // Its leader is not reaped yet, so the number is its own.
  if (has_descendants(process.role) && process.pid > 0) ::kill(-process.pid, SIGKILL);
}

// A group that was killed may take a moment to end; until then its directory is not given to anybody else.
void Supervisor::expect_end_of_group(Process& process) {
  if (!has_descendants(process.role) || (::kill(-process.pid, 0) != 0 && errno == ESRCH)) return;
  ending_groups_.push_back({process.pid, process.home});
  expect_strangers();
}

void Supervisor::look_for_ended_groups() {
  if (ending_groups_.empty()) return;
  expect_strangers();
  reap_strangers();
  std::erase_if(ending_groups_, [](const auto& one) { return ::kill(-one.first, 0) != 0 && errno == ESRCH; });
}

}  // namespace rocstar
