// What the processes of a group have together.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "check.h"
#include "process.h"

using namespace rocstar;

namespace {

constexpr size_t kShared = 128 << 20, kOwn = 1 << 20;
constexpr size_t kMembers = 40;

char* touch(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED && madvise(memory, bytes, MADV_NOHUGEPAGE) == 0);
  return static_cast<char*>(std::memset(memory, 1, bytes));
}

// Forks of one that has much, each with a little of its own. They end with this process.
std::vector<pid_t> start_group() {
  touch(kShared);
  std::vector<pid_t> started;
  int ready[2];
  CHECK(pipe(ready) == 0);
  for (size_t i = 0; i < kMembers; ++i) {
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setpgid(0, started.empty() ? 0 : started.front());
      touch(kOwn);
      CHECK(write(ready[1], "", 1) == 1);
      while (true) pause();
    }
    setpgid(pid, started.empty() ? 0 : started.front());
    started.push_back(pid);
    char word;
    CHECK(read(ready[0], &word, 1) == 1);
  }
  return started;
}

// All at once kept the supervisor for 40 ms, of a program whose twenty processes shared 200 MB: four fifths of its time
// in pieces of that length, and with more memory longer ones.
void a_group_is_weighed_a_few_at_a_time() {
  const std::vector<pid_t> started = start_group();
  const GroupUse use = use_of_group(started.front());
  CHECK(use.members.size() == kMembers && use.tasks == kMembers);
  CHECK(use.bytes >= kMembers * kShared);
  Weighing weighing{.left = use.members};
  CHECK(!weighing.go_on());
  CHECK(!weighing.left.empty() && weighing.left.size() < kMembers);
  while (!weighing.go_on()) {
  }
  CHECK(weighing.bytes >= kMembers * kOwn && weighing.bytes <= kShared + kMembers * 2 * kOwn);
  for (const pid_t pid : started) {
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, nullptr, 0) == pid);
  }
}

// The sanitizer of threads has one in each process, and memory besides.
#if defined(__SANITIZE_THREAD__)
constexpr bool kHasOwn = true;
#else
constexpr bool kHasOwn = false;
#endif

}  // namespace

int main() {
  if (!kHasOwn) a_group_is_weighed_a_few_at_a_time();
}
