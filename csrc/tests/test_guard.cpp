// Confines a forked process as the supervisor confines itself, and tries single calls in it.
#include "guard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "check.h"
#include "seccomp.h"

using namespace rocstar;

namespace {

constexpr int kUntold = 255;  // of a check that failed

// Of a call in a confined process: its errno (0 when it succeeded), or 1000 + the signal that the process died of.
int outcome(const std::function<long()>& attempt) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    confine_supervisor();
    errno = 0;
    syscall(SYS_exit_group, attempt() >= 0 ? 0 : errno != 0 ? errno : kUntold);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

// A line of this thread's status, as a number of this base.
uint64_t status_of(const std::string& name, int base) {
  std::ifstream file("/proc/thread-self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1), nullptr, base);
  }
  return ~0ULL;
}

bool keeps_only_what_is_named() {
  uint64_t kept = 0;
  for (const int number : kSupervisorKeeps) kept |= uint64_t{1} << number;
  const bool few = (status_of("CapPrm", 16) & ~kept) == 0 && (status_of("CapEff", 16) & ~kept) == 0;
  const bool bounded = geteuid() != 0 || (status_of("CapBnd", 16) & ~kept) == 0;
  return few && bounded && status_of("CapInh", 16) == 0 && status_of("CapAmb", 16) == 0 &&
         status_of("NoNewPrivs", 10) == 1;
}

void capabilities_are_dropped_in_all_threads() {
  CHECK(outcome([] { return keeps_only_what_is_named() ? 0 : -1; }) == 0);
  CHECK(outcome([] {
          bool kept = false;
          std::thread([&kept] { kept = keeps_only_what_is_named(); }).join();
          return kept ? 0 : -1;
        }) == 0);
}

void what_the_loop_does_works() {
  CHECK(outcome([] { return open("/proc/self/stat", O_RDONLY | O_CLOEXEC); }) == 0);
  CHECK(outcome([] { return memfd_create("stdin", MFD_CLOEXEC); }) == 0);
  CHECK(outcome([] {
          int ends[2];
          return socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
        }) == 0);
  CHECK(outcome([] { return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }) == 0);
  CHECK(outcome([] { return kill(getpid(), 0); }) == 0);
}

#if !defined(ROCSTAR_SANITIZED)

constexpr int kKilled = 1000 + SIGSYS;

int call(long number, long a = 0, long b = 0, long c = 0) {
  return outcome([=] { return syscall(number, a, b, c, 0, 0, 0); });
}

void the_filter_is_in_force_in_all_threads() {
  CHECK(outcome([] { return status_of("Seccomp", 10) == 2 ? 0 : -1; }) == 0);
  CHECK(outcome([] {
          std::thread([] { syscall(SYS_unshare, 0); }).join();
          return 0L;
        }) == kKilled);
}

void what_a_captor_would_begin_with_ends_it() {
  for (const long number : {SYS_execve,
                            SYS_execveat,
                            SYS_ptrace,
                            SYS_process_vm_readv,
                            SYS_process_vm_writev,
                            SYS_unshare,
                            SYS_setns,
                            SYS_mount,
                            SYS_umount2,
                            SYS_pivot_root,
                            SYS_chroot,
                            SYS_setresuid,
                            SYS_setuid,
                            SYS_setgroups,
                            SYS_capset,
                            SYS_socket,
                            SYS_bpf,
                            SYS_perf_event_open,
                            SYS_keyctl,
                            SYS_io_uring_setup,
                            SYS_init_module,
                            SYS_finit_module,
                            SYS_kexec_load,
                            SYS_open_by_handle_at,
                            SYS_userfaultfd,
                            SYS_reboot,
                            SYS_clock_settime,
                            SYS_pidfd_getfd,
                            SYS_mknodat,
                            SYS_personality}) {
    CHECK(call(number) == kKilled);
  }
#if defined(__x86_64__)
  CHECK(call(SYS_fork) == kKilled && call(SYS_vfork) == kKilled);
#endif
}

void it_makes_no_process_and_no_code() {
  CHECK(call(SYS_clone, SIGCHLD) == EPERM);
  CHECK(call(SYS_clone3) == ENOSYS);
  CHECK(outcome([] {
          return mmap(nullptr, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0;
        }) == EPERM);
  CHECK(outcome([] {
          void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          return mprotect(page, 4096, PROT_READ | PROT_EXEC);
        }) == EPERM);
  CHECK(call(SYS_bind) == EPERM && call(SYS_connect) == EPERM && call(SYS_symlinkat) == EPERM);
  CHECK(call(2000) == ENOSYS);
}

#endif

}  // namespace

int main() {
  capabilities_are_dropped_in_all_threads();
  what_the_loop_does_works();
#if !defined(ROCSTAR_SANITIZED)
  if (!seccomp_available()) return 0;
  the_filter_is_in_force_in_all_threads();
  what_a_captor_would_begin_with_ends_it();
  it_makes_no_process_and_no_code();
#endif
  return 0;
}
