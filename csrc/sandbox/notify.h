// Questions that the kernel stops a child for and asks the supervisor (seccomp user notification, Linux 5.5): may it
// create one more file, signal this process, fork itself, end with us? One filter per zygote, inherited by all its
// children, so it costs a child nothing until it asks. Only registers are judged, never memory, which could change
// meanwhile.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "unique_fd.h"

namespace rocstar {

// True when this kernel can ask, and can be told to go on.
bool notify_available();

// Adds the filter to the calling process. Needs no_new_privs. Throws std::system_error.
// `threads`: asks for each thread, too, where the kernel does not count them (rlimits count a user's).
UniqueFd install_notify_filter(bool threads);

struct Question {
  enum class Kind { kCreate, kSignal, kBranch, kTie, kThread };
  Kind kind;
  pid_t thread;  // that asks
  pid_t target;  // of a signal; of a tie, 0 when it ties to nothing
};

// Takes one question from the listener and lets `judge` answer: 0 goes on, an errno is what the system call returns.
// False when the question went away meanwhile, its asker having been killed.
bool answer_question(int listener, const std::function<int(const Question&)>& judge);

}  // namespace rocstar
