// Needs the right to make a memory cgroup; says so and passes where there is none.
#include "cgroup.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"

using namespace rocstar;

namespace {

constexpr size_t kLimit = 64 << 20;

pid_t start(size_t bytes) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    std::vector<char> touched(bytes);
    std::memset(touched.data(), 1, touched.size());
    _exit(touched[bytes / 2] == 1 ? 0 : 1);
  }
  return pid;
}

int ending_of(pid_t pid) {
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  return status;
}

}  // namespace

int main() {
  const std::optional<Cgroup> group = Cgroup::enter(kLimit);
  if (!group) {
    std::puts("no memory cgroup can be made here: nothing was tested");
    return 0;
  }
  CHECK(group->kills() == 0);
  CHECK(WIFEXITED(ending_of(start(kLimit / 8))));
  CHECK(group->kills() == 0);
  const int status = ending_of(start(2 * kLimit));
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(group->kills() == 1);
}
