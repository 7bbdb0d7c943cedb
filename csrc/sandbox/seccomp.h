// A seccomp filter: rules per system call, compiled to raw BPF as a binary tree over the numbers.
#pragma once

#include <linux/filter.h>
#include <linux/sched.h>

#include <stddef.h>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

namespace rocstar {

// A check of one 32-bit half of an argument: (half & mask) must be one of `values`.
struct ArgCheck {
  unsigned index;
  uint32_t mask = 0xFFFFFFFF;
  std::vector<uint32_t> values;
  bool high = false;
  bool own_pid = false;  // `values` is the pid of the process that installs the filter
};

struct Rule {
  enum class Action { kAllow, kErrno, kKill };
  uint32_t number;
  Action action;
  int error = 0;                    // for kErrno, and for kAllow when a check fails
  std::vector<ArgCheck> checks;     // all must hold,
  std::vector<ArgCheck> otherwise;  // or all of these, if there are any
  std::vector<ArgCheck> nothing;    // for kAllow: when all of these hold it does nothing, and succeeds
  std::vector<ArgCheck> never;      // for kAllow: when one of these holds it fails with EBADF, whatever else holds
};

// The action for a system call without a rule. Allowed: another filter, which is in force already, decides on it.
enum class Unruled { kRefused, kAllowed };

// Invariant: a system call without a rule is never allowed, unless another filter decides on those. Up to `newest` it
// gets EPERM, beyond it ENOSYS, which is what a program expects of a kernel older than itself. Another architecture's
// call, x32's included, kills.
class SeccompFilter {
 public:
  static constexpr size_t kMostInstructions = 1024;

  SeccompFilter(std::vector<Rule> rules, uint32_t newest, Unruled unruled = Unruled::kRefused);

  // Confines the calling thread for ever. Needs no_new_privs. Returns 0 or errno. Allocates nothing.
  int install(uint32_t own_pid) const;

  const std::vector<sock_filter>& program() const { return program_; }

 private:
  std::vector<sock_filter> program_;
  std::vector<size_t> pid_places_;  // instructions whose constant is the pid
};

bool seccomp_available();

// The optional rights of a child.
struct PolicyOptions {
  bool scratch = false;   // create and write files: needs Landlock to say where, and seccomp_notify.h to say how many
  bool session = false;   // be branched, which seccomp_notify.h must grant
  bool truncate = false;  // by path: needs Landlock's ABI 3
  bool compiler = false;  // start other programs, which Landlock must name; a process group keeps them together
  bool program = false;   // become a program that is open already, which Landlock must name
  bool shell = false;     // start other programs, and signal them as the supervisor grants; never lose its lifeline
};

// How a session forks itself, and nobody else may: the exact first argument of clone.
inline constexpr uint32_t kBranchFlags = CLONE_PARENT | CLONE_CHILD_SETTID | SIGCHLD;

// The third argument, which the kernel does not look at, of the prctl by which a branch asks for its death with the
// supervisor. It has the supervisor asked: a fork takes the death signal away, and nobody else can see whether it is
// there again.
inline constexpr uint32_t kTieWord = 0x74696564;

// What a rule allows, in words: the arguments that are looked at and what they may be.
std::string describe(const Rule& rule);

// The rules of rocstar's children: see syscall_policy.cpp.
std::vector<Rule> child_policy(const PolicyOptions& options);

// The same in two, for of two filters' verdicts the stricter counts: what can be in force in a zygote, whose children
// inherit it, and what is each child's own, since the zygote or the child on its way needs the call, or since the rule
// names a pid. The kernel takes as long to install a filter as it is large. The first does not depend on `session`.
std::vector<Rule> inherited_policy(const PolicyOptions& options);
std::vector<Rule> own_policy(const PolicyOptions& options);  // with Unruled::kAllowed
// The supervisor's filter, see guard.h.
std::vector<Rule> supervisor_policy();
uint32_t newest_known_syscall();

}  // namespace rocstar
