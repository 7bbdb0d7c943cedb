#include "seccomp.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <stdexcept>

namespace rocstar {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
constexpr uint32_t kX32Bit = 0x40000000;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
constexpr uint32_t kX32Bit = 0;
#else
#error "the system call policy is written for x86-64 and arm64"
#endif
static_assert(std::endian::native == std::endian::little, "arguments are read as little-endian halves");

// Stands for the pid in a program that is not installed yet; longest jump of a conditional instruction.
constexpr uint32_t kPidMark = 0x7FFFFFFF;
constexpr size_t kFarJump = 255;

using Code = std::vector<sock_filter>;

sock_filter statement(uint16_t code, uint32_t k) { return BPF_STMT(code, k); }
sock_filter jump(uint16_t code, uint32_t k, size_t when_true, size_t when_false) {
  if (when_true > kFarJump || when_false > kFarJump) throw std::logic_error("a seccomp jump is too far");
  return BPF_JUMP(code, k, static_cast<uint8_t>(when_true), static_cast<uint8_t>(when_false));
}
sock_filter give(uint32_t verdict) { return statement(BPF_RET | BPF_K, verdict); }
sock_filter load(size_t offset) { return statement(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }

uint32_t errno_verdict(int error) { return SECCOMP_RET_ERRNO | (static_cast<uint32_t>(error) & SECCOMP_RET_DATA); }

// Loads, masks, compares; falls through to the next check when it holds, else jumps `to_denied` past its own end.
void append_check(Code& code, const ArgCheck& check, size_t to_denied) {
  const size_t offset = offsetof(seccomp_data, args) + 8 * check.index + (check.high ? 4 : 0);
  code.push_back(load(offset));
  if (check.mask != 0xFFFFFFFF) code.push_back(statement(BPF_ALU | BPF_AND | BPF_K, check.mask));
  const std::vector<uint32_t> values = check.own_pid ? std::vector<uint32_t>{kPidMark} : check.values;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t behind = values.size() - 1 - i;
    code.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, values[i], behind, behind == 0 ? to_denied : 0));
  }
}

size_t check_length(const ArgCheck& check) {
  return 1 + (check.mask != 0xFFFFFFFF) + (check.own_pid ? 1 : check.values.size());
}

// Gives the verdict if all checks hold, else falls out of its own end.
Code all_of(const std::vector<ArgCheck>& checks, uint32_t verdict) {
  size_t left = 0;
  for (const ArgCheck& check : checks) left += check_length(check);
  Code code;
  for (const ArgCheck& check : checks) {
    left -= check_length(check);
    append_check(code, check, left + 1);
  }
  code.push_back(give(verdict));
  return code;
}

// What happens once the number is known to be this rule's.
Code leaf(const Rule& rule) {
  if (rule.action == Rule::Action::kKill) return {give(SECCOMP_RET_KILL_PROCESS)};
  if (rule.action == Rule::Action::kErrno) return {give(errno_verdict(rule.error))};
  Code code;
  for (const ArgCheck& check : rule.never) {
    const Code refused = all_of({check}, errno_verdict(EBADF));
    code.insert(code.end(), refused.begin(), refused.end());
  }
  const Code allowed = all_of(rule.checks, SECCOMP_RET_ALLOW);
  code.insert(code.end(), allowed.begin(), allowed.end());
  const auto append = [&code](const std::vector<ArgCheck>& checks, uint32_t verdict) {
    if (checks.empty()) return;
    const Code more = all_of(checks, verdict);
    code.insert(code.end(), more.begin(), more.end());
  };
  append(rule.otherwise, SECCOMP_RET_ALLOW);
  append(rule.nothing, errno_verdict(0));
  if (!rule.checks.empty()) code.push_back(give(errno_verdict(rule.error)));
  return code;
}

// One verdict for all numbers from `first` up to the next run.
struct Run {
  uint32_t first;
  Code code;
};

bool same(const Code& a, const Code& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const sock_filter& x, const sock_filter& y) {
    return x.code == y.code && x.jt == y.jt && x.jf == y.jf && x.k == y.k;
  });
}

std::vector<Run> runs_of(const std::vector<Rule>& rules, uint32_t newest, Unruled unruled) {
  std::vector<Run> runs;
  const bool allowed = unruled == Unruled::kAllowed;
  const uint32_t known = allowed ? SECCOMP_RET_ALLOW : errno_verdict(EPERM);
  const uint32_t unknown = allowed ? SECCOMP_RET_ALLOW : errno_verdict(ENOSYS);
  const auto add = [&runs](uint32_t first, Code code) {
    if (runs.empty() || !same(runs.back().code, code)) runs.push_back({first, std::move(code)});
  };
  uint32_t next = 0;
  for (const Rule& rule : rules) {
    if (rule.number < next) throw std::logic_error("two seccomp rules for one system call");
    if (rule.number > next) add(next, {give(known)});
    add(rule.number, leaf(rule));
    next = rule.number + 1;
  }
  if (next <= newest) add(next, {give(known)});
  add(std::max(next, newest + 1), {give(unknown)});
  return runs;
}

// The accumulator holds the number. Lower half first, so that its jump stays short.
Code tree(const std::vector<Run>& runs, size_t begin, size_t end) {
  if (end - begin == 1) return runs[begin].code;
  const size_t middle = begin + (end - begin) / 2;
  const Code low = tree(runs, begin, middle);
  const Code high = tree(runs, middle, end);
  Code code;
  if (low.size() <= kFarJump) {
    code.push_back(jump(BPF_JMP | BPF_JGE | BPF_K, runs[middle].first, low.size(), 0));
  } else {
    code.push_back(jump(BPF_JMP | BPF_JGE | BPF_K, runs[middle].first, 0, 1));
    code.push_back(statement(BPF_JMP | BPF_JA, static_cast<uint32_t>(low.size())));
  }
  code.insert(code.end(), low.begin(), low.end());
  code.insert(code.end(), high.begin(), high.end());
  return code;
}

}  // namespace

SeccompFilter::SeccompFilter(std::vector<Rule> rules, uint32_t newest, Unruled unruled) {
  std::sort(rules.begin(), rules.end(), [](const Rule& a, const Rule& b) { return a.number < b.number; });
  program_ = {
      load(offsetof(seccomp_data, arch)),
      jump(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      give(SECCOMP_RET_KILL_PROCESS),
      load(offsetof(seccomp_data, nr)),
  };
  if (kX32Bit != 0) {
    program_.push_back(jump(BPF_JMP | BPF_JGE | BPF_K, kX32Bit, 0, 1));
    program_.push_back(give(SECCOMP_RET_KILL_PROCESS));
  }
  const std::vector<Run> runs = runs_of(rules, newest, unruled);
  const Code body = tree(runs, 0, runs.size());
  program_.insert(program_.end(), body.begin(), body.end());
  if (program_.size() > kMostInstructions) throw std::logic_error("a seccomp filter is too long");
  for (size_t i = 0; i < program_.size(); ++i) {
    const bool compares = BPF_CLASS(program_[i].code) == BPF_JMP && BPF_OP(program_[i].code) == BPF_JEQ;
    if (compares && program_[i].k == kPidMark) pid_places_.push_back(i);
  }
}

int SeccompFilter::install(uint32_t own_pid) const {
  // On the stack, whose pages a child changes anyway: one of its heap would be copied for a number.
  std::array<sock_filter, kMostInstructions> program;
  std::copy(program_.begin(), program_.end(), program.begin());
  for (const size_t place : pid_places_) program[place].k = own_pid;
  const sock_fprog filter{static_cast<unsigned short>(program_.size()), program.data()};
  return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0 ? 0 : errno;
}

std::string describe(const Rule& rule) {
  const auto words = [](const std::vector<ArgCheck>& checks) {
    std::string text;
    for (const ArgCheck& check : checks) {
      if (!text.empty()) text += " and ";
      text.append(check.high ? "high " : "arg ").append(std::to_string(check.index));
      if (check.mask != 0xFFFFFFFF) text.append(" & ").append(std::to_string(check.mask));
      text += " in";
      if (check.own_pid) text += " own pid";
      for (const uint32_t value : check.values) text.append(" ").append(std::to_string(value));
    }
    return text;
  };
  std::string text = words(rule.checks);
  if (!rule.otherwise.empty()) text.append(" or ").append(words(rule.otherwise));
  if (!rule.nothing.empty()) text.append("; nothing is done when ").append(words(rule.nothing));
  for (const ArgCheck& check : rule.never) text.append("; never when ").append(words({check}));
  return text;
}

bool seccomp_available() {
  const uint32_t action = SECCOMP_RET_KILL_PROCESS;
  return syscall(__NR_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

}  // namespace rocstar
