#include "zygote.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "compact.h"
#include "cpp_child.h"
#include "guard.h"
#include "namespaces.h"
#include "priority.h"
#include "shell_child.h"
#include "stacks.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace rocstar {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void say(int supervisor, ZygoteWord word, std::string_view rest, std::span<const int> fds = {}) {
  std::string bytes(1, static_cast<char>(word));
  bytes += rest;
  send_message(supervisor, bytes, fds);
}

uint64_t measure_resident() {
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) _exit(0);
  rusage usage{};
  if (wait4(pid, nullptr, 0, &usage) != pid) fail("wait4");
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

void say_fatal(int supervisor, const std::string& json) { say(supervisor, ZygoteWord::kFatal, json); }

void say_at(int supervisor, const std::string& what) { say(supervisor, ZygoteWord::kAt, what); }

Zygote::Zygote(UniqueFd supervisor, const Layers& layers)
    : supervisor_(std::move(supervisor)), layers_(layers), baseline_resident_(measure_resident()) {
  UniqueFd proc(open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (layers_.hides && hide_processes()) {
    proc_ = std::move(proc);
    // The supervisor's descriptors of scratch directories lead outside of these mounts, where they have no path.
    base_.reset(open("..", O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  thread_id();
  keep_capabilities(kZygoteKeeps);
  if (!layers_.notify) return;
  const UniqueFd listener = install_notify_filter(layers_.counted);
  const int fd = listener.get();
  say(supervisor_.get(), ZygoteWord::kListener, {}, {&fd, 1});
}

void Zygote::hello(const std::string& json) {
  std::string rest(reinterpret_cast<const char*>(&baseline_resident_), sizeof baseline_resident_);
  say(supervisor_.get(), ZygoteWord::kHello, rest + json);
}

void Zygote::serve(const std::function<int(Child&)>& run) {
  set_short_slice();
  while (true) {
    ForkOrder order;
    bool again = false;
    const Message message = receive_message(supervisor_.get(), {reinterpret_cast<char*>(&order), sizeof order}, again);
    if (again) continue;
    if (message.bytes != sizeof order) return;
    fork(order, message.fds, run);
  }
}

// What all children of interpreters may not do, this process may not do any more, either.
void Zygote::confine(const PolicyOptions& policy) {
  thread_id();  // found by the C library's own fork, which need not be a call that is allowed afterwards
  SeccompFilter inherited(inherited_policy(policy), newest_known_syscall());
  errno = inherited.install(static_cast<uint32_t>(getpid()));
  if (errno != 0) fail("seccomp");
  confined_ = true;
}

// Compiled here once per kind of child, not in each child.
SeccompFilter& Zygote::filter_of(const ForkOrder& order) {
  if (order.role == Role::kShell) return shell_filter(layers_.truncate);
  if (order.role != Role::kInterpreter) return cpp_filter(order.role, layers_.truncate);
  const bool scratch = order.has_scratch != 0;
  const PolicyOptions plain{.scratch = scratch, .truncate = scratch && layers_.truncate};
  PolicyOptions session = plain;
  session.session = layers_.notify;
  static SeccompFilter of_program(own_policy(plain), newest_known_syscall(), Unruled::kAllowed);
  static SeccompFilter of_session(own_policy(session), newest_known_syscall(), Unruled::kAllowed);
  if (!confined_) confine(plain);
  return order.session != 0 ? of_session : of_program;
}

void Zygote::fork(const ForkOrder& order, const FdList& fds, const std::function<int(Child&)>& run) {
  const bool session = order.session != 0;
  Confinement how{.input = fds[0].get(),
                  .output = fds[1].get(),
                  .error = fds[2].get(),
                  .control = fds[3].get(),
                  .uid = order.uid,
                  .nice = order.nice,
                  .limits = order.limits,
                  .parent = getppid()};
  how.base = base_.get();
  how.proc = proc_.get();
  how.directory = order.directory;
  how.limits.address_space_bytes += meter_.bytes();
  how.role = order.role;
  if (Child::output_bytes != order.output_bytes) Child::output_bytes = order.output_bytes;
  if (order.role == Role::kInterpreter) bound_stacks(order.limits.address_space_bytes);
  if (layers_.seccomp || order.role != Role::kInterpreter) how.filter = &filter_of(order);
  if (!used_up_) {  // which is not written again: that would copy its page for each child
    use_up_free_memory();
    used_up_ = true;
  }
  size_t next = 4;
  if (fds.size() > next) how.ruleset = fds[next++].get();
  if (fds.size() > next) how.scratch = fds[next++].get();
  if (fds.size() > next) how.program = fds[next].get();
  const pid_t pid = fork_sibling(zygote_fork_flags());
  if (pid == 0) {
    Child::confine(how);
    Child child(session, order.role);
    _exit(run(child));
  }
  if (pid > 0) return;
  const ForkError error{order.child, errno};
  say(supervisor_.get(), ZygoteWord::kForkError, {reinterpret_cast<const char*>(&error), sizeof error});
}

bool die_with_parent(pid_t parent) { return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent; }

uint64_t collapse_heap() {
  constexpr uint64_t kHuge = 2 << 20;
  FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return 0;
  uint64_t collapsed = 0;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
    char mode[5] = {}, device[16] = {}, name[256] = {};
    const int fields =
        std::sscanf(line, "%lx-%lx %4s %lx %15s %lu %255s", &begin, &end, mode, &offset, device, &inode, name);
    const bool anonymous = fields >= 6 && inode == 0 && (name[0] == '\0' || std::strcmp(name, "[heap]") == 0);
    if (!anonymous || std::strcmp(mode, "rw-p") != 0) continue;
    for (uint64_t at = (begin + kHuge - 1) / kHuge * kHuge; at + kHuge <= end; at += kHuge) {
      // EINVAL: nothing there yet, or an old kernel. Either way the heap works as before.
      if (madvise(reinterpret_cast<void*>(at), kHuge, MADV_COLLAPSE) == 0) collapsed += kHuge;
    }
  }
  std::fclose(maps);
  return collapsed;
}

}  // namespace rocstar
