// Installs the real policy in a forked process and tries single system calls under it.
#include "seccomp.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>
#include <stdexcept>

#include "check.h"
#include "link.h"
#include "unique_fd.h"

using namespace rocstar;

namespace {

constexpr PolicyOptions kPlain{}, kScratch{.scratch = true, .truncate = true},
    kSession{.scratch = true, .session = true}, kShell{.scratch = true, .truncate = true, .shell = true};

// The policy under trial; what has no word for it below is the same under each.
PolicyOptions policy;

// In two, as interpreters have it.
bool in_two = false;

bool confine() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  const auto pid = static_cast<uint32_t>(getpid());
  const uint32_t newest = newest_known_syscall();
  if (!in_two) return SeccompFilter(child_policy(policy), newest).install(pid) == 0;
  return SeccompFilter(inherited_policy(policy), newest).install(pid) == 0 &&
         SeccompFilter(own_policy(policy), newest, Unruled::kAllowed).install(pid) == 0;
}

// What `attempt` gave under the policy: its errno (0 when it succeeded), or 1000 + the signal that it died of.
int outcome(const std::function<long()>& attempt) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    if (!confine()) _exit(250);
    errno = 0;
    syscall(SYS_exit_group, attempt() >= 0 ? 0 : errno);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

int call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  return outcome([=] { return syscall(number, a, b, c, d, e); });
}

constexpr int kKilled = 1000 + SIGSYS;

void everyday_calls_work() {
  CHECK(call(SYS_getpid) == 0);
  CHECK(outcome([] { return open("/dev/null", O_RDONLY | O_CLOEXEC); }) == 0);
  CHECK(outcome([] { return static_cast<long>(write(2, "", 0)); }) == 0);
  CHECK(outcome([] { return fcntl(0, F_GETFL); }) == 0);
}

void nothing_is_opened_for_writing() {
  for (const int flags : {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_CREAT, O_TMPFILE | O_WRONLY}) {
    CHECK(outcome([=] { return open("/dev/null", flags, 0600); }) == EROFS);
  }
  CHECK(call(SYS_mkdirat, AT_FDCWD, reinterpret_cast<long>("/tmp/x"), 0700) == EROFS);
  CHECK(call(SYS_unlinkat, AT_FDCWD, reinterpret_cast<long>("/tmp/x")) == EROFS);
  CHECK(call(SYS_truncate, reinterpret_cast<long>("/tmp/x"), 0) == EROFS);
}

// Where to, Landlock says; how often, seccomp_notify.h. But what neither of them knows about stays refused.
void with_scratch_files_can_be_made_but_not_disguised() {
  CHECK(outcome([] { return open("/dev/null", O_WRONLY | O_CLOEXEC); }) == 0);
  CHECK(outcome([] { return open("/", O_CREAT | O_WRONLY, 0600); }) == EISDIR);  // allowed as far as the filter goes
  CHECK(outcome([] { return open("/tmp", O_TMPFILE | O_WRONLY, 0600); }) == EOPNOTSUPP);
  CHECK(call(SYS_unlinkat, AT_FDCWD, reinterpret_cast<long>("/tmp/rocstar_test_none"), 0) == ENOENT);
  const long name = reinterpret_cast<long>("/tmp/rocstar_test_none");
  CHECK(call(SYS_linkat, AT_FDCWD, name, AT_FDCWD, name, 0) == EPERM);
  CHECK(call(SYS_symlinkat, name, AT_FDCWD, name) == EPERM);
  CHECK(call(SYS_mknodat, AT_FDCWD, name, S_IFIFO | 0600, 0) == EPERM);
  CHECK(call(SYS_openat2, AT_FDCWD, name, 0, 0) == ENOSYS);
#ifdef SYS_creat
  CHECK(call(SYS_creat, name, 0600) == EPERM);
#endif
}

// Modes, owners and times: done as far as the caller can tell.
void who_copies_is_not_told_of_what_is_not_done() {
  char name[] = "/tmp/rocstar_test_XXXXXX";
  const UniqueFd file(mkstemp(name));
  const long path = reinterpret_cast<long>(name);
  CHECK(file && call(SYS_fchmod, file.get(), 0777) == 0 && call(SYS_fchmodat, AT_FDCWD, path, 0777) == 0);
  CHECK(call(452, AT_FDCWD, path, 0777, AT_SYMLINK_NOFOLLOW) == 0);  // fchmodat2
  CHECK(call(SYS_fchown, file.get(), 1, 1) == 0 && call(SYS_utimensat, AT_FDCWD, path, 0, 0) == 0);
  struct stat info;
  CHECK(fstat(file.get(), &info) == 0 && (info.st_mode & 0777) == 0600 && info.st_uid == geteuid());
  for (const long number : {SYS_getxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr}) {
    CHECK(call(number, path, path, 0, 0) == EOPNOTSUPP);
  }
  unlink(name);
}

void truncation_by_path_needs_landlock_to_know_it() {
  const long name = reinterpret_cast<long>("/tmp/rocstar_test_none");
  CHECK(call(SYS_truncate, name, 0) == (policy.truncate ? ENOENT : EROFS));
}

void a_session_may_be_branched_and_nothing_else() {
  CHECK(outcome([] {
          const long pid = syscall(SYS_clone, kBranchFlags, 0, 0, 0, 0);
          if (pid == 0) syscall(SYS_exit_group, 0);
          return pid;
        }) == 0);
  const long forks[] = {0,
                        SIGCHLD,
                        kBranchFlags | CLONE_NEWUSER,
                        kBranchFlags | CLONE_VM,
                        (kBranchFlags & ~0xFFl) | SIGKILL,
                        CLONE_PARENT | SIGCHLD};
  for (const long flags : forks) CHECK(call(SYS_clone, flags) == EPERM);
  CHECK(outcome([] { return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); }) == 0);
  for (const int signal : {0, SIGTERM, SIGCONT}) {
    CHECK(outcome([=] { return prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0); }) == EPERM);
  }
  CHECK(call(SYS_setsid) == EPERM && call(SYS_setpgid, 0, 0) == EPERM);  // a family stays together
  CHECK(call(SYS_sendmsg, 99, 0, 0) == EPERM);                           // no descriptor leaves it
}

// Each of these told of other programs, or let one leave a word for the next.
void nobody_learns_of_others() {
  const long other = getppid();
  for (const long number : {SYS_getpgid, SYS_getsid}) CHECK(call(number, 0) == 0 && call(number, other) == EPERM);
  CHECK(call(SYS_getpriority, 0, 0) == 0 && call(SYS_getpriority, 0, other) == EPERM);
  CHECK(call(SYS_sched_getaffinity, other, 0, 0) == ENOSYS);
  CHECK(call(SYS_capget, 0, 0) == EPERM);
  static timespec now;
  const long room = reinterpret_cast<long>(&now);
  for (const long clock : {0L, 1L, 2L, 11L, -2L, -6L}) CHECK(call(SYS_clock_gettime, clock, room) == 0);
  for (const long number : {SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep}) {
    CHECK(call(number, static_cast<int>(~static_cast<unsigned>(other) << 3 | 2), room) == EINVAL);
  }
  static int word;
  const long at = reinterpret_cast<long>(&word);
  CHECK(call(SYS_futex, at, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1) == 0 && call(SYS_futex, at, FUTEX_WAKE, 1) == EAGAIN);
  CHECK(call(SYS_futex, at, FUTEX_REQUEUE, 1) == EAGAIN);
  CHECK(call(SYS_madvise, 0, 0, MADV_DONTNEED) == 0 && call(SYS_madvise, 0, 0, MADV_MERGEABLE) == EINVAL);
  CHECK(call(SYS_fadvise64, 99, 0, 0, POSIX_FADV_DONTNEED) == 0);  // it looks at nothing
  CHECK(call(SYS_fstatfs, 0, room) == EACCES);
}

// The end of a thread wakes who waits on a word that others see as well: there is no such waiting, and what waits for
// a thread looks again.
void nobody_waits_where_others_look() {
  static int word;
  static timespec soon = {0, 1000000};
  const long at = reinterpret_cast<long>(&word), limit = reinterpret_cast<long>(&soon);
  for (const int how : {FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME}) {
    CHECK(call(SYS_futex, at, how, 0, limit) == EAGAIN);
  }
  CHECK(call(SYS_futex, at, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, limit) == ETIMEDOUT);
  CHECK(outcome([] {
          pthread_t thread;
          const auto nap = [](void*) -> void* { return usleep(20000), nullptr; };
          return pthread_create(&thread, nullptr, nap, nullptr) == 0 && pthread_join(thread, nullptr) == 0 ? 0 : -1;
        }) == 0);
}

// A compiled program's threads often work while the first one does nothing but wait for them.
void a_compiled_program_may_wait() {
  static int word;
  static timespec soon = {0, 1000000};
  const long at = reinterpret_cast<long>(&word);
  CHECK(call(SYS_futex, at, FUTEX_WAIT, 0, reinterpret_cast<long>(&soon)) == ETIMEDOUT);
  CHECK(call(SYS_futex, at, FUTEX_WAKE, 1) == EPERM);
}

void an_open_file_keeps_no_word() {
  CHECK(outcome([] { return fcntl(2, F_SETFL, O_NONBLOCK); }) == 0);
  for (const int flag : {O_APPEND, O_DIRECT, O_ASYNC}) {
    CHECK(outcome([=] { return fcntl(2, F_SETFL, flag); }) == EPERM);
  }
  struct flock lock{.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1, .l_pid = 0};
  // On a descriptor that nothing can be locked through: it is answered without being looked at.
  CHECK(outcome([&] { return fcntl(99, F_SETLK, &lock); }) == (policy.scratch ? 0 : EPERM));
  CHECK(outcome([&] { return fcntl(99, F_GETLK, &lock); }) == (policy.scratch ? EBADF : EPERM));
}

void there_are_no_descendants() {
  CHECK(call(SYS_clone, SIGCHLD) == EPERM);
  CHECK(call(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD) == EPERM);
  CHECK(call(SYS_clone, CLONE_THREAD | CLONE_NEWUSER) == EPERM);
  CHECK(call(SYS_clone3) == ENOSYS);
#ifdef SYS_fork
  CHECK(call(SYS_fork) == EPERM);
  CHECK(call(SYS_vfork) == EPERM);
#endif
  // Allowed as far as the filter goes: the kernel then finds the flags inconsistent.
  CHECK(call(SYS_clone, CLONE_THREAD | CLONE_FILES) == EINVAL);
}

void signals_reach_oneself_only() {
  CHECK(outcome([] { return kill(getpid(), 0); }) == 0);
  CHECK(outcome([] { return kill(getppid(), 0); }) == EPERM);
  CHECK(outcome([] { return kill(-1, 0); }) == EPERM);
  CHECK(outcome([] { return kill(0, 0); }) == EPERM);
  CHECK(outcome([] { return syscall(SYS_tgkill, getpid(), gettid(), 0); }) == 0);
  CHECK(outcome([] { return syscall(SYS_tgkill, getppid(), getppid(), 0); }) == EPERM);
  CHECK(outcome([] { return fcntl(0, F_SETOWN, getppid()); }) == EPERM);
  CHECK(call(SYS_tkill, 1, 0) == EPERM);
}

void sockets_are_pairs_of_streams() {
  CHECK(call(SYS_socket, AF_INET, SOCK_STREAM) == EPERM);
  CHECK(call(SYS_socket, AF_UNIX, SOCK_DGRAM) == EPERM);
  int ends[2];
  const int pair = outcome([&] { return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends); });
  CHECK(pair == (policy.shell ? EPERM : 0));
  CHECK(outcome([&] { return socketpair(AF_UNIX, SOCK_DGRAM, 0, ends); }) == EPERM);
  CHECK(outcome([&] { return socketpair(AF_INET, SOCK_STREAM, 0, ends); }) == EPERM);
  CHECK(call(SYS_sendto, 99, 0, 0, 0, 0) == EBADF);
  CHECK(call(SYS_sendto, 99, 0, 0, 0, 0x1000) == EPERM);
  CHECK(call(SYS_sendto, 99, 0, 0, 0, 0x100000000) == EPERM);
}

void limits_can_be_read_only() {
  rlimit limit;
  CHECK(outcome([&] { return syscall(SYS_prlimit64, 0, RLIMIT_AS, nullptr, &limit); }) == 0);
  CHECK(outcome([&] { return syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, nullptr); }) == EPERM);
  CHECK(outcome([] { return prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); }) == EPERM);
  CHECK(outcome([] { return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); }) == EPERM);
  CHECK(outcome([] { return prctl(PR_SET_NAME, "x", 0, 0, 0); }) == 0);
}

void no_honest_program_calls_these() {
  for (const long number : {SYS_ptrace, SYS_process_vm_readv, SYS_unshare, SYS_setns, SYS_mount, SYS_bpf,
                            SYS_userfaultfd, SYS_perf_event_open, SYS_io_uring_setup, SYS_keyctl, SYS_kcmp}) {
    CHECK(call(number) == kKilled);
  }
}

void what_has_no_rule_is_refused() {
  CHECK(call(SYS_execve) == EPERM);
  CHECK(call(SYS_memfd_create) == EPERM);
  CHECK(call(SYS_personality, 0xFFFFFFFF) == EPERM);
  CHECK(call(newest_known_syscall() + 1) == ENOSYS);
  CHECK(call(100'000) == ENOSYS);
#if defined(__x86_64__)
  CHECK(call(0x40000000 | SYS_getpid) == kKilled);  // x32
#endif
}

void another_architecture_is_killed() {
#if defined(__x86_64__)
  // int 0x80 is the 32-bit interface, whose number 20 is getpid.
  CHECK(outcome([] {
          long result;
          asm volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory");
          return result;
        }) == kKilled);
#endif
}

long end_of(long pid) {
  if (pid == 0) syscall(SYS_exit_group, 0);
  return pid;
}

void a_shell_starts_others_that_cannot_leave_it() {
  CHECK(outcome([] { return end_of(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }) == 0);
  CHECK(call(SYS_execve, reinterpret_cast<long>("/nowhere"), 0, 0) == ENOENT);
  CHECK(call(SYS_execveat, AT_FDCWD, reinterpret_cast<long>("/nowhere"), 0, 0, 0) == EPERM);
  for (const unsigned long flag : {CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS,
                                   CLONE_NEWCGROUP, CLONE_PARENT, CLONE_PTRACE}) {
    CHECK(outcome([=] { return end_of(syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0)); }) == EPERM);
  }
  CHECK(call(SYS_clone3) == ENOSYS);
  CHECK(call(SYS_setsid) == EPERM);
  CHECK(call(SYS_setpgid, 0, 0) == EPERM);
  CHECK(call(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1) == EPERM);
  CHECK(call(SYS_prctl, PR_SET_PDEATHSIG, 0) == EPERM);
  CHECK(call(SYS_rt_sigqueueinfo, getppid(), 0, 0) == EPERM);
  CHECK(call(SYS_tkill, getppid(), 0) == EPERM);
  const rlimit more{RLIM_INFINITY, RLIM_INFINITY};
  CHECK(call(SYS_prlimit64, 0, RLIMIT_STACK, reinterpret_cast<long>(&more)) == EPERM);
}

// Whether the lifeline is still open, and as it was, after `attempt`.
bool keeps_lifeline(const std::function<long()>& attempt) {
  return outcome([&attempt]() -> long {
           attempt();
           const bool open = syscall(SYS_lseek, kLifelineFd, 0, SEEK_CUR) < 0 && errno == ESPIPE;
           struct stat info;
           const bool socket = syscall(SYS_fstat, kLifelineFd, &info) == 0 && S_ISSOCK(info.st_mode);
           errno = ECANCELED;
           return open && socket ? 0 : -1;
         }) == 0;
}

void a_shell_never_loses_its_lifeline() {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  CHECK(dup2(ends[1], kLifelineFd) == kLifelineFd);
  const auto refused = [](long number, long a, long b = 0, long c = 0) {
    return call(number, a, b, c) == EBADF && keeps_lifeline([=] { return syscall(number, a, b, c); });
  };
  const long high = (1l << 32) | kLifelineFd;  // the kernel does not look at the upper half
  for (const long fd : {long{kLifelineFd}, high}) {
    CHECK(refused(SYS_close, fd));
    CHECK(refused(SYS_dup, fd));
    CHECK(refused(SYS_dup3, fd, 9, 0));
    CHECK(refused(SYS_dup3, 0, fd, 0));
#ifdef SYS_dup2
    CHECK(refused(SYS_dup2, fd, 9));
    CHECK(refused(SYS_dup2, 0, fd));
#endif
    for (const int command : {F_DUPFD, F_DUPFD_CLOEXEC, F_SETFD, F_GETFD, F_SETFL, F_GETFL, F_SETOWN, F_SETSIG}) {
      CHECK(refused(SYS_fcntl, fd, command, 0));
    }
    for (const long request : {FIOCLEX, FIONCLEX, FIONBIO, FIOASYNC}) CHECK(refused(SYS_ioctl, fd, request, 0));
    CHECK(refused(SYS_shutdown, fd, SHUT_RDWR));
    CHECK(refused(SYS_write, fd, reinterpret_cast<long>("x"), 1));
    CHECK(refused(SYS_sendfile, fd, 0, 0));
    CHECK(call(SYS_sendto, fd, reinterpret_cast<long>("x"), 1, 0, 0) == EBADF);
    CHECK(call(SYS_writev, fd, 0, 0) == EBADF);
  }
  CHECK(call(SYS_close_range, 3, ~0U, 0) == ENOSYS);
  CHECK(call(SYS_sendmsg, kLifelineFd, 0, 0) == EPERM);
  CHECK(call(SYS_splice, 0, 0, kLifelineFd) == EPERM);
  CHECK(call(SYS_close, ends[1]) == 0);  // only that one
  char byte;
  CHECK(recv(ends[0], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);  // and nothing was written
  close(kLifelineFd);
  close(ends[0]);
  close(ends[1]);
}

void a_shells_tools_find_their_old_calls() {
  char name[] = "/tmp/rocstar_test_XXXXXX";
  const UniqueFd file(mkstemp(name));
  const long path = reinterpret_cast<long>(name);
#ifdef SYS_creat
  CHECK(call(SYS_creat, path, 0600) == 0);
#endif
  CHECK(call(SYS_timer_create, 0, 0, 0) == ENOSYS);
  CHECK(call(SYS_linkat, AT_FDCWD, path, AT_FDCWD, path, 0) == EPERM);
  CHECK(call(SYS_symlinkat, path, AT_FDCWD, path) == EPERM);
  CHECK(call(SYS_mknodat, AT_FDCWD, path, S_IFIFO | 0600, 0) == EPERM);
  unlink(name);
}

// Memory that several processes see belongs to none of them, and would be nobody's who is counted.
void a_shells_processes_share_no_memory() {
  const auto map = [](int flags) {
    return outcome([=] { return syscall(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0); });
  };
  CHECK(map(MAP_SHARED) == EPERM && map(MAP_SHARED_VALIDATE) == EPERM && map(MAP_PRIVATE) == 0);
  CHECK(call(SYS_memfd_create) == EPERM && call(SYS_shmget) == EPERM);
}

void two_rules_for_one_call_are_a_mistake() {
  bool refused = false;
  try {
    const SeccompFilter filter({{1, Rule::Action::kAllow}, {1, Rule::Action::kKill}}, 10);
  } catch (const std::logic_error&) {
    refused = true;
  }
  CHECK(refused);
}

// A zygote of both kinds of children has one filter.
void what_is_inherited_does_not_depend_on_the_kind() {
  const SeccompFilter program(inherited_policy(kPlain), newest_known_syscall());
  const SeccompFilter session(inherited_policy({.session = true}), newest_known_syscall());
  const auto same = [](const sock_filter& a, const sock_filter& b) {
    return a.code == b.code && a.jt == b.jt && a.jf == b.jf && a.k == b.k;
  };
  CHECK(std::equal(program.program().begin(), program.program().end(), session.program().begin(),
                   session.program().end(), same));
}

// Each child pays for the size of its own.
void what_is_a_childs_own_is_small() {
  const SeccompFilter own(own_policy(kSession), newest_known_syscall(), Unruled::kAllowed);
  const SeccompFilter whole(child_policy(kSession), newest_known_syscall());
  CHECK(own.program().size() * 3 < whole.program().size());
}

void tried_in(const PolicyOptions& each, bool two) {
  policy = each;
  in_two = two;
  everyday_calls_work();
  nobody_learns_of_others();
  nobody_waits_where_others_look();
  an_open_file_keeps_no_word();
  there_are_no_descendants();
  if (!each.session) signals_reach_oneself_only();
  sockets_are_pairs_of_streams();
  limits_can_be_read_only();
  no_honest_program_calls_these();
  what_has_no_rule_is_refused();
  another_architecture_is_killed();
  if (each.scratch) with_scratch_files_can_be_made_but_not_disguised();
  if (each.scratch) who_copies_is_not_told_of_what_is_not_done();
  truncation_by_path_needs_landlock_to_know_it();
  if (each.session) a_session_may_be_branched_and_nothing_else();
}

}  // namespace

int main() {
  if (!seccomp_available()) return 0;
  nothing_is_opened_for_writing();
  two_rules_for_one_call_are_a_mistake();
  what_is_inherited_does_not_depend_on_the_kind();
  what_is_a_childs_own_is_small();
  for (const PolicyOptions& each : {kPlain, kScratch, kSession}) {
    for (const bool two : {false, true}) tried_in(each, two);
  }
  in_two = false;
  policy = {.scratch = true, .truncate = true, .program = true};
  a_compiled_program_may_wait();
  policy = kShell;
  everyday_calls_work();
  nobody_learns_of_others();
  nobody_waits_where_others_look();
  sockets_are_pairs_of_streams();
  limits_can_be_read_only();
  no_honest_program_calls_these();
  another_architecture_is_killed();
  truncation_by_path_needs_landlock_to_know_it();
  a_shell_starts_others_that_cannot_leave_it();
  a_shell_never_loses_its_lifeline();
  a_shells_processes_share_no_memory();
  who_copies_is_not_told_of_what_is_not_done();
  a_shells_tools_find_their_old_calls();
}
