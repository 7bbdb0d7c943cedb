#include "child.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <system_error>

#include "capture.h"
#include "landlock.h"
#include "priority.h"

namespace rocstar {
namespace {

int drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  return syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

int enter_uid(uint32_t uid) {
  if (setgroups(0, nullptr) != 0) return errno;
  if (setresgid(uid, uid, uid) != 0) return errno;
  return setresuid(uid, uid, uid) == 0 ? 0 : errno;
}

int take_descriptors(const Confinement& how) {
  const std::array<int, 4> wanted{how.input, how.output, how.error, how.control};
  for (int fd = 0; fd < 4; ++fd) {
    if (dup2(wanted[static_cast<size_t>(fd)], fd) < 0) return errno;
  }
  if (how.program >= 0 && how.program != kProgramFd && dup2(how.program, kProgramFd) < 0) return errno;
  return 0;
}

// A death signal reaches a compiler or a shell, but not the programs that it starts. They all share its group and its
// end of the control socket: when that is closed at the other end, the kernel kills the group (from O_ASYNC on,
// die_with_supervisor).
int bind_group_to_control() {
  const bool done = fcntl(kControlFd, F_SETOWN, -getpid()) == 0 && fcntl(kControlFd, F_SETSIG, SIGKILL) == 0;
  return done ? 0 : errno;
}

// In this order: Landlock and seccomp need no_new_privs; the directory and the ruleset are descriptors, which
// close_range ends; a change of uid clears the death signal and the capabilities; nothing but writing works after
// seccomp.
int enter_layers(const Confinement& how) {
  if (setsid() < 0) return errno;
  if (how.nice != 0) lower_priority(how.nice, how.proc);
  if (has_descendants(how.role)) reset_slices({getpid()});  // who starts others early would leave them its short slices
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  if (how.scratch >= 0 && fchdir(how.base >= 0 ? how.base : how.scratch) != 0) return errno;
  if (how.scratch >= 0 && how.base >= 0 && chdir(how.directory) != 0) return errno;
  if (how.ruleset >= 0) {
    if (const int error = enter_landlock(how.ruleset)) return error;
  }
  const int first_other = how.program >= 0 ? kProgramFd + 1 : kFirstOtherFd;
  if (syscall(SYS_close_range, first_other, ~0U, 0) != 0) return errno;
  if (const int error = apply_rlimits(how.limits)) return error;
  if (how.uid != 0) {
    if (const int error = enter_uid(how.uid)) return error;
  }
  if (const int error = drop_capabilities()) return error;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (getppid() != how.parent) return ESRCH;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return errno;
  if (has_descendants(how.role)) {
    if (const int error = bind_group_to_control()) return error;
  }
  if (how.role == Role::kShell && dup2(kControlFd, kLifelineFd) < 0) return errno;
  return how.filter == nullptr ? 0 : how.filter->install(static_cast<uint32_t>(getpid()));
}

bool write_exactly(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t n = write(fd, bytes, count);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    count -= static_cast<size_t>(n);
  }
  return true;
}

bool announce(int error) {
  const Birth birth{error == 0 ? kReady : kNotReady, error == 0 ? getpid() : error};
  return write_exactly(kControlFd, reinterpret_cast<const char*>(&birth), sizeof birth);
}

// How much of the C library's record of a thread is looked at.
constexpr size_t kRecordWords = 512;

// In a process that the library itself has forked, and that ends here: which word it gave the new id. Those that `had`
// the old one by accident have it still.
[[noreturn]] void tell_changed_word(const std::array<bool, kRecordWords>& had, const int* words, int pipe) {
  const auto own = static_cast<int>(syscall(SYS_gettid));
  int found = -1;
  for (size_t i = 0; i < kRecordWords && found < 0; ++i) {
    if (had[i] && words[i] == own) found = static_cast<int>(i);
  }
  [[maybe_unused]] const ssize_t told = write(pipe, &found, sizeof found);
  _exit(0);
}

// The C library keeps the thread's id in a record of its own, whose layout is not public. Other words of it may equal
// the id: the upper halves of its addresses are numbers such as 32,511, and a zygote with that pid would have had all
// its children's first pointer overwritten. So the library's own fork is watched: what it changes is the id's place.
int* find_thread_id() {
  static int elsewhere = 0;
  const auto own = static_cast<int>(syscall(SYS_gettid));
  int* const words = reinterpret_cast<int*>(pthread_self());
  std::array<bool, kRecordWords> had;
  for (size_t i = 0; i < kRecordWords; ++i) had[i] = words[i] == own;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  const UniqueFd answer(ends[0]);
  UniqueFd question(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) tell_changed_word(had, words, question.get());
  question.reset();
  int found = -1;
  while (read(answer.get(), &found, sizeof found) < 0 && errno == EINTR) {
  }
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return found < 0 ? &elsewhere : words + found;
}

}  // namespace

uint64_t zygote_fork_flags() { return CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD; }

int* thread_id() {
  static int* const found = find_thread_id();
  return found;
}

pid_t fork_sibling(uint64_t flags) {
#if defined(__aarch64__)
  return static_cast<pid_t>(syscall(SYS_clone, flags, nullptr, nullptr, nullptr, thread_id()));
#else
  return static_cast<pid_t>(syscall(SYS_clone, flags, nullptr, nullptr, thread_id(), nullptr));
#endif
}

void Child::confine(const Confinement& how) {
  int error = take_descriptors(how);
  if (error == 0) error = enter_layers(how);
  if (!announce(error) || error != 0) _exit(kSetupFailedExit);
}

void give_up(int error) {
  announce(error);
  _exit(kSetupFailedExit);
}

int die_with_supervisor() {
  if (fcntl(kControlFd, F_SETFL, O_ASYNC) != 0) return errno;
  pollfd control{.fd = kControlFd, .events = POLLRDHUP, .revents = 0};
  if (poll(&control, 1, 0) < 0) return errno;
  return (control.revents & (POLLHUP | POLLRDHUP)) ? EPIPE : 0;
}

// What Python ignores, and a new program would inherit.
void restore_signals() {
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

Environment::Environment(const std::string& preload) {
  std::array<char, PATH_MAX> home;
  if (getcwd(home.data(), home.size()) == nullptr) give_up(errno);
  words_ = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"};
  for (const char* name : {"HOME=", "TMPDIR="}) words_.push_back(std::string(name) + home.data());
  if (!preload.empty() && UniqueFd(open(preload.c_str(), O_RDONLY | O_CLOEXEC))) {
    words_.push_back("LD_PRELOAD=" + preload);
    words_.push_back(std::string("ROCSTAR_HOME=") + home.data());
  }
  for (std::string& word : words_) pointers_.push_back(word.data());
  pointers_.push_back(nullptr);
}

bool Child::read_exactly(char* to, size_t count, FdList* fds) {
  while (count > 0) {
    ssize_t got = 0;
    if (fds != nullptr) {
      bool again = false;
      Message message = receive_message(kControlFd, {to, count}, again);
      if (again) continue;
      for (UniqueFd& fd : message.fds) fds->add(std::move(fd));
      got = static_cast<ssize_t>(message.bytes);
    } else {
      got = read(kControlFd, to, count);
      if (got < 0 && errno == EINTR) continue;
    }
    if (got <= 0) return false;
    to += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

std::optional<Cell> Child::next_cell() {
  while (true) {
    CellHeader header;
    FdList fds;
    if (!read_exactly(reinterpret_cast<char*>(&header), sizeof header, session_ ? &fds : nullptr)) return std::nullopt;
    if (header.kind == CellKind::kBranch) {
      branch(std::move(fds));
      continue;
    }
    Cell cell;
    cell.after_interrupt = header.flags & CellHeader::kAfterInterrupt;
    if (header.flags & CellHeader::kHasSeed) cell.seed = uint64_t{header.seed};
    cell.code.resize(header.code_bytes);
    if (!read_exactly(cell.code.data(), cell.code.size(), nullptr)) return std::nullopt;
    return cell;
  }
}

uint64_t Child::output_bytes = 1 << 20;

std::string Child::fit_value(std::string value) {
  if (value.size() <= kHardOutputFactor * std::max(output_bytes, kSmallestOutputCap)) return value;
  constexpr uint64_t kMark = 64;  // the line between head and tail is no longer
  HeadTail kept(output_bytes - std::min(output_bytes / 2, kMark));
  kept.append(value);
  return kept.shown().text;
}

void Child::reply(int code, const std::string& value) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const CellReply reply{CellKind::kRun, code, static_cast<uint64_t>(usage.ru_maxrss) * 1024,
                        static_cast<uint32_t>(value.size())};
  std::string bytes(reinterpret_cast<const char*>(&reply), sizeof reply);
  bytes += value;
  if (!write_exactly(kControlFd, bytes.data(), bytes.size())) _exit(0);
}

// The new process keeps everything that was inherited (layers, uid, directory) and takes new descriptors. A death
// signal is not inherited, and the supervisor takes no branch without one. It has what its origin had, random state
// included.
void Child::branch(FdList fds) {
  const pid_t parent = getppid();
  int error = fds.size() == 4 ? 0 : EINVAL;
  if (error == 0 && has_threads != nullptr && has_threads()) error = EBUSY;
  if (error == 0) {
    const pid_t pid = fork_sibling(kBranchFlags);
    if (pid == 0) {
      const Confinement how{.input = fds[0].get(),
                            .output = fds[1].get(),
                            .error = fds[2].get(),
                            .control = fds[3].get(),
                            .limits = {},
                            .parent = parent};
      int wrong = take_descriptors(how);
      fds.clear();
      if (wrong == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL, kTieWord, 0, 0) != 0) wrong = errno;
      if (wrong == 0 && getppid() != parent) wrong = ESRCH;
      if (!announce(wrong) || wrong != 0) _exit(kSetupFailedExit);
      return;
    }
    if (pid < 0) error = errno;
  }
  const CellReply reply{CellKind::kBranch, error, 0, 0};
  if (!write_exactly(kControlFd, reinterpret_cast<const char*>(&reply), sizeof reply)) _exit(0);
}

}  // namespace rocstar
