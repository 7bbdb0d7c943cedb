#include "seccomp_notify.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <system_error>
#include <vector>

#include "seccomp.h"

#ifndef SECCOMP_USER_NOTIF_FLAG_CONTINUE
#define SECCOMP_USER_NOTIF_FLAG_CONTINUE 1
#endif

namespace rocstar {
namespace {

constexpr uint32_t kNoMask = 0xFFFFFFFF;

// Ask when the argument's lower half, masked, equals `value`; a mask of 0 always asks.
struct Asked {
  uint32_t number;
  unsigned argument = 0;
  uint32_t mask = 0;
  uint32_t value = 0;
};

constexpr Asked kAsked[] = {
    {__NR_openat, 2, O_CREAT, O_CREAT},
    {__NR_mkdirat},
    {__NR_kill},
    {__NR_tgkill},
    {__NR_clone, 0, kNoMask, kBranchFlags},
    {__NR_prctl, 2, kNoMask, kTieWord},
#if defined(__x86_64__)
    {__NR_open, 1, O_CREAT, O_CREAT},
    {__NR_creat},
    {__NR_mkdir},
#endif
};

constexpr Asked kAskedOfThreads[] = {{__NR_clone, 0, CLONE_THREAD, CLONE_THREAD}};

// A zygote's children are its siblings, which no shell program can have.
constexpr Asked kAskedOfProcesses[] = {
    {__NR_clone, 0, CLONE_PARENT, 0},
#if defined(__x86_64__)
    {__NR_fork},
    {__NR_vfork},
#endif
};

// All else is allowed here: the child's own filter decides on it, and of two verdicts the stricter counts.
std::vector<sock_filter> notify_program(Counted counted) {
  const sock_filter load_number = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  std::vector<sock_filter> code{load_number};
  std::vector<Asked> all(std::begin(kAsked), std::end(kAsked));
  if (counted == Counted::kThreads) all.insert(all.end(), std::begin(kAskedOfThreads), std::end(kAskedOfThreads));
  if (counted == Counted::kProcesses) all.insert(all.end(), std::begin(kAskedOfProcesses), std::end(kAskedOfProcesses));
  for (const Asked& asked : all) {
    if (asked.mask == 0) {
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, asked.number, 0, 1));
      code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
      continue;
    }
    const auto offset = static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * asked.argument);
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, asked.number, 0, 5));
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
    code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, asked.mask));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, asked.value, 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    code.push_back(load_number);
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return code;
}

Question question_of(const seccomp_notif& asked) {
  const auto number = static_cast<uint32_t>(asked.data.nr);
  const auto thread = static_cast<pid_t>(asked.pid);
  if (number == __NR_clone) {
    const auto flags = static_cast<uint32_t>(asked.data.args[0]);
    if (flags & CLONE_THREAD) return {Question::Kind::kThread, thread, 0};
    return {flags == kBranchFlags ? Question::Kind::kBranch : Question::Kind::kProcess, thread, 0};
  }
#if defined(__x86_64__)
  if (number == __NR_fork || number == __NR_vfork) return {Question::Kind::kProcess, thread, 0};
#endif
  if (number == __NR_prctl) {
    const bool ties = static_cast<uint32_t>(asked.data.args[0]) == PR_SET_PDEATHSIG && asked.data.args[1] == SIGKILL;
    return {Question::Kind::kTie, thread, ties ? thread : 0};
  }
  if (number == __NR_kill || number == __NR_tgkill) {
    const bool to_thread = number == __NR_tgkill;
    return {Question::Kind::kSignal, thread, static_cast<pid_t>(asked.data.args[0]),
            static_cast<int>(asked.data.args[to_thread ? 2 : 1]), to_thread};
  }
  return {Question::Kind::kCreate, thread, 0};
}

// The kernel's structures may be larger than this header's.
struct Sizes {
  size_t question = sizeof(seccomp_notif);
  size_t answer = sizeof(seccomp_notif_resp);
};

Sizes sizes() {
  seccomp_notif_sizes kernel{};
  if (syscall(__NR_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &kernel) != 0) return {};
  return {std::max<size_t>(sizeof(seccomp_notif), kernel.seccomp_notif),
          std::max<size_t>(sizeof(seccomp_notif_resp), kernel.seccomp_notif_resp)};
}

}  // namespace

bool notify_available() {
  const uint32_t action = SECCOMP_RET_USER_NOTIF;
  return syscall(__NR_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

UniqueFd install_notify_filter(Counted counted) {
  std::vector<sock_filter> code = notify_program(counted);
  const sock_fprog filter{static_cast<unsigned short>(code.size()), code.data()};
  UniqueFd listener(
      static_cast<int>(syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter)));
  if (!listener) throw std::system_error(errno, std::generic_category(), "seccomp(NEW_LISTENER)");
  return listener;
}

bool answer_question(int listener, const std::function<int(const Question&)>& judge) {
  static const Sizes kSizes = sizes();
  static std::vector<char> asked_bytes(kSizes.question), answer_bytes(kSizes.answer);
  std::fill(asked_bytes.begin(), asked_bytes.end(), 0);  // the kernel insists
  std::fill(answer_bytes.begin(), answer_bytes.end(), 0);
  auto& asked = *reinterpret_cast<seccomp_notif*>(asked_bytes.data());
  auto& answer = *reinterpret_cast<seccomp_notif_resp*>(answer_bytes.data());
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) return false;
  const int error = judge(question_of(asked));
  answer.id = asked.id;
  answer.error = error == kDone ? 0 : -error;
  answer.flags = error == 0 ? SECCOMP_USER_NOTIF_FLAG_CONTINUE : 0;
  return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0;
}

}  // namespace rocstar
