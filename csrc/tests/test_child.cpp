// A fork without the C library: the new process has its own id where the library keeps it, and nothing else is changed.
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "check.h"
#include "child.h"

using namespace rocstar;

namespace {

// The kernel's word for where the library has it; null where it does not say (musl names another place).
int* kernels_thread_id() {
  int* found = nullptr;
  if (prctl(PR_GET_TID_ADDRESS, &found) != 0 || found == nullptr || *found != gettid()) return nullptr;
  return found;
}

void a_word_that_equals_the_id_by_accident_is_left_alone(int* kernels) {
  int* const words = reinterpret_cast<int*>(pthread_self());
  int* accident = kernels;
  while (--accident > words && *accident != 0) {
  }
  CHECK(accident > words);
  *accident = gettid();  // as the upper half of an address may be
  CHECK(thread_id() == kernels);
  const int before = *accident;
  const pid_t pid = fork_sibling(CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD);
  CHECK(pid >= 0);
  if (pid == 0) _exit(*accident == before && *kernels == getpid() && *kernels != before ? 0 : 1);
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  *accident = 0;
}

}  // namespace

int main() {
  if (int* const kernels = kernels_thread_id()) a_word_that_equals_the_id_by_accident_is_left_alone(kernels);
  return 0;
}
