#include "zygote.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "landlock.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace rocstar {
namespace {

constexpr int kSetupFailedExit = 125;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// A copy above the descriptors that a child's own take, so that dup2 in the child never overwrites a source.
UniqueFd lifted(UniqueFd fd) {
  if (!fd) fail("open");
  if (fd.get() >= kFirstOtherFd) return fd;
  UniqueFd high(fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstOtherFd));
  if (!high) fail("fcntl(F_DUPFD_CLOEXEC)");
  return high;
}

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
  Pipe made{UniqueFd(ends[0]), UniqueFd(ends[1])};
  made.read_end = lifted(std::move(made.read_end));
  made.write_end = lifted(std::move(made.write_end));
  if (fcntl(made.read_end.get(), F_SETFL, O_NONBLOCK) != 0) fail("fcntl(O_NONBLOCK)");
  return made;
}

// A sealed file: the child can read and seek, and nothing it does can change or grow it.
UniqueFd make_stdin(const std::string& bytes) {
  UniqueFd file = lifted(UniqueFd(memfd_create("stdin", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
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

int drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  return syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

int enter_slot_uid(uint32_t uid) {
  if (setgroups(0, nullptr) != 0) return errno;
  if (setresgid(uid, uid, uid) != 0) return errno;
  return setresuid(uid, uid, uid) == 0 ? 0 : errno;
}

}  // namespace

struct Zygote::Pipes {
  UniqueFd input;
  Pipe out;
  Pipe err;
  Pipe value;
};

std::string Layers::names() const {
  std::string joined = "nnp+rlimits";
  if (landlock) joined += "+landlock";
  if (seccomp) joined += "+seccomp";
  if (slot_uid) joined += "+uid";
  return joined;
}

Zygote::Zygote(Layers layers)
    : layers_(std::move(layers)),
      filter_(child_policy(), newest_known_syscall()),
      null_(lifted(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)))) {
  if (layers_.landlock) ruleset_ = lifted(make_landlock_ruleset(layers_.readable_paths));
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) _exit(0);
  rusage usage{};
  if (wait4(pid, nullptr, 0, &usage) != pid) fail("wait4");
  baseline_resident_ = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

ForkResult Zygote::fork(const Rlimits& limits, const std::string& stdin_bytes, uint32_t slot) {
  Pipes pipes{{}, make_pipe(), make_pipe(), make_pipe()};
  if (!stdin_bytes.empty()) pipes.input = make_stdin(stdin_bytes);
  const pid_t parent = getpid();
  // Not os.fork: this process has one thread, so CPython's after-fork handlers would only cost half a
  // millisecond; what must differ between children (random state) the cell runner sets itself.
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    confine(pipes, limits, slot, parent);
    return {.in_child = true, .handle = {}};
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const int error = errno;
    kill(pid, SIGKILL);  // it is not reaped yet, so the number is still its own
    waitpid(pid, nullptr, 0);
    errno = error;
    fail("pidfd_open");
  }
  return {.in_child = false,
          .handle = {pid, lifted(std::move(pidfd)), std::move(pipes.out.read_end), std::move(pipes.err.read_end),
                     std::move(pipes.value.read_end)}};
}

void Zygote::confine(const Pipes& pipes, const Rlimits& limits, uint32_t slot, pid_t parent) {
  const int input = pipes.input ? pipes.input.get() : null_.get();
  int error = 0;
  if (dup2(input, 0) < 0 || dup2(pipes.out.write_end.get(), 1) < 0 || dup2(pipes.err.write_end.get(), 2) < 0 ||
      dup2(pipes.value.write_end.get(), kValueFd) < 0) {
    error = errno;
  }
  if (error == 0) error = enter_layers(limits, slot, parent);
  char message[1 + sizeof error] = {error == 0 ? kReady : kNotReady};
  std::memcpy(message + 1, &error, sizeof error);
  const size_t length = error == 0 ? 1 : sizeof message;
  if (write(kValueFd, message, length) != static_cast<ssize_t>(length) || error != 0) _exit(kSetupFailedExit);
}

// In this order: Landlock and seccomp need no_new_privs; Landlock needs its descriptor, which close_range ends; a
// change of uid clears the death signal and the capabilities; nothing but writing works after seccomp.
int Zygote::enter_layers(const Rlimits& limits, uint32_t slot, pid_t parent) {
  if (setsid() < 0) return errno;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  if (layers_.landlock) {
    if (const int error = enter_landlock(ruleset_.get())) return error;
  }
  if (syscall(SYS_close_range, kFirstOtherFd, ~0U, 0) != 0) return errno;
  if (const int error = apply_rlimits(limits)) return error;
  if (layers_.slot_uid) {
    if (const int error = enter_slot_uid(layers_.first_uid + slot)) return error;
  }
  if (const int error = drop_capabilities()) return error;
  if (!die_with_parent(parent)) return ESRCH;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return errno;
  return layers_.seccomp ? filter_.install(static_cast<uint32_t>(getpid())) : 0;
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
