// Questions that the kernel stops a child for and asks the supervisor (seccomp user notification, Linux 5.5): may it
// create one more file, signal this process, fork itself, end with us, start one process more? One filter per zygote,
// inherited by all its children, so it costs a child nothing until it asks. Only registers are judged, never memory,
// which could change meanwhile.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "unique_fd.h"

namespace rocstar {

// True if this kernel supports notifications and continuing a call.
bool notify_available();

// What is asked besides, where the kernel does not count it (rlimits count a user's): each new thread, or each new
// thread and process but those that a zygote forks.
enum class Counted { kNothing, kThreads, kProcesses };

// Adds the filter to the calling process. Needs no_new_privs. Throws std::system_error.
UniqueFd install_notify_filter(Counted counted);

struct Question {
  enum class Kind { kCreate, kSignal, kBranch, kTie, kThread, kProcess };
  Kind kind;
  pid_t thread;  // that asks
  pid_t target;  // of a signal; of a tie, 0 when it ties to nothing
  int signal = 0;
  bool to_thread = false;  // of a signal
};

// An answer: the call was done in the asker's place, and returns 0.
inline constexpr int kDone = -1;

// Receives one notification and answers with `judge`: 0 continues the call, an errno is returned by it.
// False when the question went away meanwhile, its asker having been killed.
bool answer_question(int listener, const std::function<int(const Question&)>& judge);

}  // namespace rocstar
