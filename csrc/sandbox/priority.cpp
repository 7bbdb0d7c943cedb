#include "priority.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "unique_fd.h"

namespace rocstar {
namespace {

constexpr uint64_t kSliceNs = 100'000;  // the shortest that the kernel takes, from 6.12 on
constexpr uint64_t kResetOnFork = 1;

// sched_attr as the kernel first had it. Its own header and the C library's do not go together everywhere.
struct Attributes {
  uint32_t size = sizeof(Attributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = kSliceNs, deadline_ns = 0, period_ns = 0;
};
static_assert(sizeof(Attributes) == 48);

bool ask(pid_t thread, const Attributes& wanted) { return syscall(SYS_sched_setattr, thread, &wanted, 0) == 0; }

void set_group(int32_t nice, int proc = -1) {
  const char* path = proc < 0 ? "/proc/self/autogroup" : "self/autogroup";
  const UniqueFd group(openat(proc < 0 ? AT_FDCWD : proc, path, O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(nice);
  if (group && write(group.get(), text.data(), text.size()) < 0) return;  // a kernel without groups
}

}  // namespace

void raise_priority() {
  const int nice = getpriority(PRIO_PROCESS, 0);
  if (nice <= 0 && ask(0, {.flags = kResetOnFork, .nice = std::min(nice, kFirstNice)})) {
    set_group(kFirstNice);
  } else {
    ask(0, {.flags = kResetOnFork, .nice = nice});
  }
}

void set_short_slice() { ask(0, {.nice = getpriority(PRIO_PROCESS, 0)}); }

void lower_priority(int32_t nice, int proc) {
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + nice);
  set_group(nice, proc);
}

void reset_slices(const std::vector<pid_t>& threads) {
  for (const pid_t thread : threads) {
    errno = 0;
    const int nice = getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
    if (errno == 0) ask(thread, {.nice = nice, .runtime_ns = 0});
  }
}

}  // namespace rocstar
