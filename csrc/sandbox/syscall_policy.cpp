// Which system calls a child may make. Three answers: allowed (perhaps for some arguments only); refused with the
// error that a well-behaved program expects; killed, for calls that no honest program makes by accident.
//
// Without a scratch directory there is no writable place: a path cannot be opened for writing. With one, Landlock
// says where, and seccomp_notify.h counts what is created. There are no descendants: only threads can be created, so
// one SIGKILL ends a call; a session is forked on the supervisor's order alone. A compiler and a shell program have
// descendants, but cannot leave their process group, which one SIGKILL ends as well.
//
// A shell program is as hostile as any, and so is what it starts: each has the filter of the first, for it outlives
// exec. What is added for it, and nobody else: fork and exec, signals that the supervisor sends for it
// (seccomp_notify.h), and calls that fail or do nothing in the way that tools expect. What is taken away: everything
// that could close, copy or change the socket by which the kernel kills them all when the supervisor dies.

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "link.h"
#include "seccomp.h"

// Numbers from 424 on are the same on every architecture; older headers lack the last ones.
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_add_rule 445
#endif
#ifndef __NR_landlock_restrict_self
#define __NR_landlock_restrict_self 446
#endif
#ifndef __NR_memfd_secret
#define __NR_memfd_secret 447
#endif
#ifndef __NR_process_mrelease
#define __NR_process_mrelease 448
#endif
#ifndef __NR_futex_waitv
#define __NR_futex_waitv 449
#endif
#ifndef __NR_fchmodat2
#define __NR_fchmodat2 452
#endif
#ifndef MAP_HUGETLB
#define MAP_HUGETLB 0x40000
#endif

namespace rocstar {
namespace {

constexpr uint32_t kNewest = 462;  // mseal, Linux 6.10

// clang-format off
constexpr uint32_t kAllowed[] = {
    // memory
    __NR_brk, __NR_munmap, __NR_mremap, __NR_mprotect, __NR_msync,
    // open files
    __NR_read, __NR_readv, __NR_pread64, __NR_preadv, __NR_write, __NR_writev, __NR_pwrite64, __NR_lseek,
    __NR_close, __NR_close_range, __NR_dup, __NR_dup3, __NR_fstat, __NR_ftruncate, __NR_pipe2,
    __NR_eventfd2, __NR_epoll_create1, __NR_epoll_ctl, __NR_epoll_pwait, __NR_ppoll, __NR_pselect6,
    // looking at the file system
    __NR_newfstatat, __NR_statx, __NR_readlinkat, __NR_faccessat, __NR_faccessat2, __NR_getdents64,
    __NR_getcwd, __NR_chdir, __NR_fchdir, __NR_umask,
    // socketpairs, which asyncio wakes itself with
    __NR_recvfrom, __NR_recvmsg, __NR_getsockname, __NR_getpeername, __NR_shutdown,
    // time
    __NR_nanosleep, __NR_gettimeofday, __NR_times, __NR_setitimer, __NR_getitimer,
    // threads and signals of one's own
    __NR_set_robust_list, __NR_set_tid_address, __NR_rseq, __NR_sched_yield, __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_rt_sigpending,
    __NR_rt_sigsuspend, __NR_rt_sigtimedwait, __NR_sigaltstack, __NR_restart_syscall, __NR_exit,
    __NR_exit_group, __NR_wait4, __NR_waitid,
    // facts
    __NR_getpid, __NR_getppid, __NR_gettid, __NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid,
    __NR_getresuid, __NR_getresgid, __NR_getgroups, __NR_uname,
    __NR_sysinfo, __NR_getrusage, __NR_getrlimit, __NR_getcpu, __NR_getrandom,
#if defined(__x86_64__)
    __NR_dup2, __NR_pipe, __NR_poll, __NR_select, __NR_epoll_wait, __NR_stat, __NR_lstat, __NR_access,
    __NR_readlink, __NR_getdents, __NR_time, __NR_alarm, __NR_pause, __NR_getpgrp, __NR_epoll_create,
#endif
};

constexpr uint32_t kKilled[] = {
    __NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev, __NR_process_madvise, __NR_process_mrelease,
    __NR_kcmp, __NR_pidfd_getfd, __NR_unshare, __NR_setns, __NR_mount, __NR_umount2, __NR_pivot_root,
    __NR_move_mount, __NR_open_tree, __NR_fsopen, __NR_fsconfig, __NR_fsmount, __NR_fspick, __NR_mount_setattr,
    __NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register, __NR_add_key, __NR_request_key, __NR_keyctl,
    __NR_bpf, __NR_userfaultfd, __NR_perf_event_open, __NR_memfd_secret, __NR_open_by_handle_at,
    __NR_fanotify_init, __NR_kexec_load, __NR_init_module, __NR_finit_module, __NR_delete_module, __NR_reboot,
    __NR_swapon, __NR_swapoff, __NR_acct, __NR_quotactl, __NR_clock_settime, __NR_settimeofday, __NR_sethostname,
    __NR_setdomainname, __NR_vhangup, __NR_kexec_file_load,
#if defined(__x86_64__)
    __NR_iopl, __NR_ioperm, __NR_modify_ldt,
#endif
};

// What changes a file system and Landlock never allows: links, devices.
constexpr uint32_t kNeverWritten[] = {
    __NR_linkat, __NR_symlinkat, __NR_mknodat,
#if defined(__x86_64__)
    __NR_link, __NR_symlink, __NR_mknod,
#endif
};

// As open with O_CREAT and O_TRUNC; tar writes its archives so. Python does not.
constexpr uint32_t kCreating[] = {
#if defined(__x86_64__)
    __NR_creat,
#endif
};

// Attributes, which Landlock does not know about. Programs do without where a file system has none.
constexpr uint32_t kAttributes[] = {
    __NR_getxattr,  __NR_lgetxattr,  __NR_fgetxattr,   __NR_setxattr,    __NR_lsetxattr,    __NR_fsetxattr,
    __NR_listxattr, __NR_llistxattr, __NR_flistxattr,  __NR_removexattr, __NR_lremovexattr, __NR_fremovexattr,
};

// Modes, owners and times, which Landlock does not know about either. Those who copy files (shutil.copy, touch, sed -i,
// tar) take a refusal for a failure, so where there is a directory to write to it is not done and succeeds.
constexpr uint32_t kNeverChanged[] = {
    __NR_fchmodat, __NR_fchownat, __NR_utimensat, __NR_fchmod, __NR_fchown, __NR_fchmodat2,
#if defined(__x86_64__)
    __NR_chmod, __NR_chown, __NR_lchown, __NR_utime, __NR_utimes, __NR_futimesat,
#endif
};

// What changes a directory that is one's own.
constexpr uint32_t kScratchCalls[] = {
    __NR_mkdirat, __NR_unlinkat, __NR_fallocate, __NR_fsync, __NR_fdatasync, __NR_sendfile,
    __NR_copy_file_range, __NR_pwritev, __NR_renameat,
#if defined(__x86_64__)
    __NR_mkdir, __NR_rmdir, __NR_unlink, __NR_rename,
#endif
};

// How g++ and bash start other programs.
constexpr uint32_t kStartingCalls[] = {
    __NR_execve,
#if defined(__x86_64__)
    __NR_fork, __NR_vfork,
#endif
};

// What the supervisor needs besides `kAllowed`: programs' directories, descriptors, processes and rules.
constexpr uint32_t kSupervisors[] = {
    __NR_openat, __NR_openat2, __NR_mkdirat, __NR_unlinkat, __NR_renameat, __NR_renameat2, __NR_fchmod, __NR_fchmodat,
    __NR_fchmodat2, __NR_fchown, __NR_fchownat, __NR_utimensat, __NR_statfs, __NR_fstatfs, __NR_fcntl, __NR_flock,
    __NR_memfd_create, __NR_socketpair, __NR_sendto, __NR_sendmsg, __NR_setsockopt, __NR_getsockopt, __NR_kill,
    __NR_tgkill, __NR_pidfd_open, __NR_pidfd_send_signal, __NR_getpgid, __NR_getsid, __NR_getpriority,
    __NR_sched_getattr, __NR_sched_setattr, __NR_sched_getaffinity, __NR_prlimit64, __NR_clock_gettime,
    __NR_clock_getres, __NR_clock_nanosleep, __NR_futex, __NR_madvise, __NR_landlock_create_ruleset,
    __NR_landlock_add_rule,
#if defined(__x86_64__)
    __NR_open, __NR_mkdir, __NR_rmdir, __NR_unlink, __NR_rename, __NR_chmod, __NR_chown,
#endif
};

// What it never does, and who has taken it over would begin with.
constexpr uint32_t kNeverSupervisors[] = {
    __NR_execve, __NR_execveat, __NR_chroot, __NR_setuid, __NR_setgid, __NR_setreuid, __NR_setregid, __NR_setresuid,
    __NR_setresgid, __NR_setfsuid, __NR_setfsgid, __NR_setgroups, __NR_capset, __NR_personality, __NR_socket,
    __NR_mknodat, __NR_name_to_handle_at,
#if defined(__x86_64__)
    __NR_fork, __NR_vfork, __NR_mknod,
#endif
};

// What no zygote can do without: it says what became of an order, and its children confine themselves (child.cpp).
// The last ones have rules that name a pid.
constexpr uint32_t kOwn[] = {
    __NR_sendmsg, __NR_clone, __NR_openat, __NR_setsid, __NR_setpriority, __NR_prctl, __NR_prlimit64,
    __NR_landlock_restrict_self, __NR_setgroups, __NR_setresgid, __NR_setresuid, __NR_capset, __NR_seccomp,
    __NR_kill, __NR_tgkill, __NR_getpgid, __NR_getsid, __NR_sched_getaffinity,
#if defined(__x86_64__)
    __NR_open,
#endif
};

// clang-format on

// Not there: glibc then falls back to a call whose arguments can be checked.
constexpr uint32_t kMissing[] = {__NR_clone3, __NR_openat2, __NR_futex_waitv};

// What tells of others: how full a file system is that all share.
constexpr uint32_t kTelling[] = {__NR_statfs, __NR_fstatfs};

constexpr uint32_t kTmpfile = O_TMPFILE & ~O_DIRECTORY;
constexpr uint32_t kWriting = O_ACCMODE | O_CREAT | O_TRUNC | kTmpfile;
constexpr uint32_t kNewNamespaces =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
constexpr uint32_t kNoThread = kNewNamespaces | CLONE_VFORK | CLONE_PTRACE | CLONE_PARENT;

constexpr auto kAllow = Rule::Action::kAllow;

Rule opening(uint32_t number, unsigned flags, bool scratch) {
  // A file without a name would not be counted; Python then makes one with a name.
  if (scratch) return {number, kAllow, EOPNOTSUPP, {{.index = flags, .mask = kTmpfile, .values = {0}}}};
  return {number, kAllow, EROFS, {{.index = flags, .mask = kWriting, .values = {O_RDONLY}}}};
}

// A session's branches, and what a shell starts, have other pids than the one that is pinned: there the supervisor
// decides (seccomp_notify.h).
Rule signalling(uint32_t number, bool asked) {
  if (asked) return {number, kAllow};
  return {number, kAllow, EPERM, {{.index = 0, .own_pid = true}}};
}

constexpr uint32_t kNoDescendant = kNewNamespaces | CLONE_PTRACE | CLONE_PARENT;

Rule cloning(bool session, bool descendants) {
  if (descendants) return {__NR_clone, kAllow, EPERM, {{.index = 0, .mask = kNoDescendant, .values = {0}}}};
  // With the descriptors of the process: the supervisor counts those (home.h).
  constexpr uint32_t kThread = CLONE_THREAD | CLONE_FILES;
  Rule rule{__NR_clone, kAllow, EPERM, {{.index = 0, .mask = kThread | kNoThread, .values = {kThread}}}};
  if (session) rule.otherwise = {{.index = 0, .values = {kBranchFlags}}};
  return rule;
}

// A branch must ask for its death with its parent anew; nobody may take that back.
Rule process_control(bool session) {
  Rule rule{__NR_prctl, kAllow, EPERM, {{.index = 0, .values = {PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE}}}};
  if (session) rule.otherwise = {{.index = 0, .values = {PR_SET_PDEATHSIG}}, {.index = 1, .values = {SIGKILL}}};
  return rule;
}

// Not with flags: RENAME_WHITEOUT makes a name that nobody counts.
Rule renaming(bool scratch) {
  if (!scratch) return {__NR_renameat2, Rule::Action::kErrno, EROFS};
  return {__NR_renameat2, kAllow, EINVAL, {{.index = 4, .values = {0}}}};
}

// Reading one's own only; g++ asks for a larger stack, for itself and the programs that it starts.
Rule limiting(bool compiler) {
  Rule rule{__NR_prlimit64,
            kAllow,
            EPERM,
            {{.index = 0, .values = {0}}, {.index = 2, .values = {0}}, {.index = 2, .values = {0}, .high = true}}};
  if (compiler) rule.otherwise = {{.index = 0, .values = {0}}, {.index = 1, .values = {RLIMIT_STACK}}};
  return rule;
}

// A lock can be placed on every file that a program may read, and seen by every other program: an exact mailbox. So
// placing one succeeds and does nothing (flock too, see child_policy), for what a program locks is its own. Asking for
// a lock is the kernel's to answer: as no program can place one, it tells nothing of other programs. Of the flags of an
// open file one can be changed, which does no harm where a description is shared; a pipe of packets (O_DIRECT) would
// lose output.
Rule file_control(const PolicyOptions& options) {
  // F_SETOWN with F_SETSIG would send any signal to any process of the same user.
  std::vector<uint32_t> commands{F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ};
  if (options.scratch) commands.insert(commands.end(), {F_GETLK, F_OFD_GETLK});
  const uint32_t never = O_APPEND | O_DIRECT | O_NOATIME | (options.compiler || options.shell ? 0 : O_ASYNC);
  Rule rule{__NR_fcntl, kAllow, EPERM, {{.index = 1, .values = commands}}};
  rule.otherwise = {{.index = 1, .values = {F_SETFL}}, {.index = 2, .mask = never, .values = {0}}};
  if (options.scratch) rule.nothing = {{.index = 1, .values = {F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW}}};
  return rule;
}

// Clocks of one's own: another process's processor time is nobody else's business.
Rule timing(uint32_t number) {
  Rule rule{number, kAllow, EINVAL, {{.index = 0, .mask = ~0xFu, .values = {0}}}};
  rule.otherwise = {{.index = 0, .mask = ~7u, .values = {~7u}}};  // of process 0, which is the asker
  return rule;
}

// Facts about oneself, not about whoever has another number.
Rule own_fact(uint32_t number, int error) {
  Rule rule{number, kAllow, error, {{.index = 0, .values = {0}}}};
  rule.otherwise = {{.index = 0, .own_pid = true}};
  return rule;
}

// Words that only this process sees: a program may not wake who waits on the page of a library that others map as well.
// The end of a thread wakes who waits on any word, so nobody may wait on such a page either. What waits for a thread
// (pthread_join) is told to look again, which it does until the thread has ended; compiled programs, whose threads
// often work while the first one does nothing but wait for them, may wait.
Rule waiting(bool joins) {
  const int error = joins ? EPERM : EAGAIN;
  Rule rule{__NR_futex, kAllow, error, {{.index = 1, .mask = FUTEX_PRIVATE_FLAG, .values = {FUTEX_PRIVATE_FLAG}}}};
  if (!joins) return rule;
  rule.otherwise = {{.index = 1, .values = {FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME}}};
  return rule;
}

// Not those that merge pages with others' (MADV_MERGEABLE) or drop a library's from the cache (MADV_PAGEOUT).
Rule advising() {
  constexpr uint32_t kWipeOnFork = 18, kKeepOnFork = 19;
  return {__NR_madvise,
          kAllow,
          EINVAL,
          {{.index = 2,
            .values = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_FREE,
                       MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, kWipeOnFork, kKeepOnFork}}}};
}

// Not who is at the other end: its process, a handle of it, its groups.
Rule socket_facts() {
  return {__NR_getsockopt,
          kAllow,
          ENOPROTOOPT,
          {{.index = 1, .values = {SOL_SOCKET}},
           {.index = 2,
            .values = {SO_TYPE, SO_ERROR, SO_SNDBUF, SO_RCVBUF, SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER, SO_RCVTIMEO,
                       SO_SNDTIMEO, SO_ACCEPTCONN, SO_PROTOCOL, SO_DOMAIN}}}};
}

// What processes share is nobody's own memory: no limit counts it, and a shell's tools need none.
Rule mapping(bool shell) {
  const uint32_t never = MAP_HUGETLB | (shell ? MAP_SHARED : 0);
  return {__NR_mmap, kAllow, EPERM, {{.index = 3, .mask = never, .values = {0}}}};
}

// A datagram socket could be sent to any path; a stream is bound to its peer. What waits in one counts for no process,
// which is little for one program, and much for the descriptors of many: a shell's tools have pipes.
Rule pairing(bool shell) {
  if (shell) return {__NR_socketpair, Rule::Action::kErrno, EPERM};
  return {__NR_socketpair,
          kAllow,
          EPERM,
          {{.index = 0, .values = {AF_UNIX}}, {.index = 1, .mask = 0xF, .values = {SOCK_STREAM}}}};
}

std::vector<Rule> checked(const PolicyOptions& options) {
  return {
      opening(__NR_openat, 2, options.scratch),
#if defined(__x86_64__)
      opening(__NR_open, 1, options.scratch),
#endif
      mapping(options.shell),
      cloning(options.session, options.compiler || options.shell),
      signalling(__NR_kill, options.session || options.shell),
      signalling(__NR_tgkill, options.session || options.shell),
      file_control(options),
      renaming(options.scratch),
      {__NR_ioctl,
       kAllow,
       ENOTTY,
       {{.index = 1, .values = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX}}}},
      pairing(options.shell),
      {__NR_sendto, kAllow, EPERM, {{.index = 4, .values = {0}}, {.index = 4, .values = {0}, .high = true}}},
      limiting(options.compiler),
      process_control(options.session),
      timing(__NR_clock_gettime),
      timing(__NR_clock_getres),
      timing(__NR_clock_nanosleep),
      own_fact(__NR_getpgid, EPERM),
      own_fact(__NR_getsid, EPERM),
      own_fact(__NR_sched_getaffinity, ENOSYS),  // a thread's: glibc then does without
      {__NR_getpriority, kAllow, EPERM, {{.index = 1, .values = {0}}}},
      waiting(options.compiler || options.program),
      advising(),
      socket_facts(),
      // Done as far as the caller can tell: advice about a library's pages would be advice for all.
      {__NR_fadvise64, Rule::Action::kErrno, 0},
  };
}

bool is_own(uint32_t number) { return std::find(std::begin(kOwn), std::end(kOwn), number) != std::end(kOwn); }

// The lifeline (link.h) stays what and where it is: it is not closed, copied, replaced, shut down, given other flags or
// written to. Every process that could hold it has this filter, for the supervisor's other end is with the supervisor.
void guard_lifeline(Rule& rule) {
  const auto lifeline = [](unsigned index) { return ArgCheck{.index = index, .values = {kLifelineFd}}; };
  switch (rule.number) {
    case __NR_close:
    case __NR_dup:
    case __NR_shutdown:
    case __NR_fcntl:
    case __NR_ioctl:
    case __NR_write:
    case __NR_writev:
    case __NR_sendto:
    case __NR_sendfile:
      rule.never = {lifeline(0)};
      return;
    case __NR_dup3:
#if defined(__x86_64__)
    case __NR_dup2:
#endif
      rule.never = {lifeline(0), lifeline(1)};
      return;
    case __NR_close_range:
      rule = {rule.number, Rule::Action::kErrno, ENOSYS};
      return;
    default:
      return;
  }
}

void suit_shell(std::vector<Rule>& rules) {
  for (Rule& rule : rules) guard_lifeline(rule);
  rules.push_back({__NR_timer_create, Rule::Action::kErrno, ENOSYS});  // then alarm does
}

}  // namespace

std::vector<Rule> child_policy(const PolicyOptions& options) {
  std::vector<Rule> rules = checked(options);
  const Rule::Action refused = Rule::Action::kErrno;
  for (const uint32_t number : kAllowed) rules.push_back({number, kAllow});
  for (const uint32_t number : kKilled) rules.push_back({number, Rule::Action::kKill});
  // A program with a scratch directory finds what it may not do there, one without finds nothing to write to.
  const int never = options.scratch ? EPERM : EROFS;
  for (const uint32_t number : kTelling) rules.push_back({number, refused, EACCES});
  for (const uint32_t number : kNeverWritten) rules.push_back({number, refused, never});
  for (const uint32_t number : kAttributes) rules.push_back({number, refused, EOPNOTSUPP});
  for (const uint32_t number : kCreating)
    rules.push_back({number, options.shell ? kAllow : refused, options.shell ? 0 : never});
  for (const uint32_t number : kNeverChanged) rules.push_back({number, refused, options.scratch ? 0 : EROFS});
  rules.push_back({__NR_flock, refused, options.scratch ? 0 : EPERM});
  for (const uint32_t number : kScratchCalls) {
    rules.push_back({number, options.scratch ? kAllow : refused, options.scratch ? 0 : EROFS});
  }
  rules.push_back({__NR_truncate, options.truncate ? kAllow : refused, options.truncate ? 0 : EROFS});
  if (options.compiler || options.shell) {
    for (const uint32_t number : kStartingCalls) rules.push_back({number, kAllow});
  }
  if (options.program) rules.push_back({__NR_execveat, kAllow, EPERM, {{.index = 4, .values = {AT_EMPTY_PATH}}}});
#if defined(__x86_64__)
  constexpr uint32_t kSetFs = 0x1002;  // ARCH_SET_FS: every program's first step
  if (options.compiler || options.program || options.shell) {
    rules.push_back({__NR_arch_prctl, kAllow, EINVAL, {{.index = 0, .values = {kSetFs}}}});
  }
#endif
  for (const uint32_t number : kMissing) rules.push_back({number, refused, ENOSYS});
  if (options.shell) suit_shell(rules);
  return rules;
}

std::vector<Rule> inherited_policy(const PolicyOptions& options) {
  std::vector<Rule> rules = child_policy(options);
  std::erase_if(rules, [](const Rule& rule) { return is_own(rule.number); });
  for (const uint32_t number : kOwn) rules.push_back({number, kAllow});
  return rules;
}

std::vector<Rule> own_policy(const PolicyOptions& options) {
  std::vector<Rule> rules = child_policy(options);
  std::erase_if(rules, [](const Rule& rule) { return !is_own(rule.number); });
  for (const uint32_t number : kOwn) {
    const auto ruled = [number](const Rule& rule) { return rule.number == number; };
    if (std::none_of(rules.begin(), rules.end(), ruled)) rules.push_back({number, Rule::Action::kErrno, EPERM});
  }
  return rules;
}

// A program's own code is all that it may run, in threads of its own.
std::vector<Rule> supervisor_policy() {
  const auto no_code = [](uint32_t number) {
    return Rule{number, kAllow, EPERM, {{.index = 2, .mask = PROT_EXEC, .values = {0}}}};
  };
  constexpr uint32_t kNone = kNewNamespaces | CLONE_VFORK | CLONE_PTRACE | CLONE_PARENT;
  std::vector<Rule> rules{
      no_code(__NR_mmap),
      no_code(__NR_mprotect),
      {__NR_clone, kAllow, EPERM, {{.index = 0, .mask = CLONE_THREAD | kNone, .values = {CLONE_THREAD}}}},
      {__NR_clone3, Rule::Action::kErrno, ENOSYS},  // the C library then calls clone, whose flags can be seen
      {__NR_prctl, kAllow, EPERM, {{.index = 0, .values = {PR_SET_CHILD_SUBREAPER}}}},
      {__NR_ioctl,
       kAllow,
       ENOTTY,
       {{.index = 1, .values = {SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, TCGETS}}}},
  };
  for (const uint32_t number : kAllowed) {
    if (number != __NR_mprotect) rules.push_back({number, kAllow});
  }
  for (const uint32_t number : kSupervisors) rules.push_back({number, kAllow});
  for (const uint32_t number : kKilled) rules.push_back({number, Rule::Action::kKill});
  for (const uint32_t number : kNeverSupervisors) rules.push_back({number, Rule::Action::kKill});
  return rules;
}

uint32_t newest_known_syscall() { return kNewest; }

}  // namespace rocstar
