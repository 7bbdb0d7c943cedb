#include "rlimits.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"

using namespace rocstar;

namespace {

rlim_t soft(decltype(RLIMIT_AS) resource) {
  rlimit limit;
  CHECK(getrlimit(resource, &limit) == 0);
  return limit.rlim_cur;
}

template <typename Function>
int exit_code_in_child(Function function) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    function();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
  return WEXITSTATUS(status);
}

void limits_hold_in_the_process_that_sets_them() {
  CHECK(exit_code_in_child([] {
          rlimit core;
          CHECK(getrlimit(RLIMIT_CORE, &core) == 0);
          const Rlimits limits{.address_space_bytes = 1ull << 44, .cpu_s = 7, .file_bytes = 4096, .open_files = 32};
          CHECK(apply_rlimits(limits) == 0);
          CHECK(soft(RLIMIT_AS) == 1ull << 44 && soft(RLIMIT_CPU) == 7 && soft(RLIMIT_FSIZE) == 4096);
          CHECK(soft(RLIMIT_NOFILE) == 32 && soft(RLIMIT_MEMLOCK) == 0);
          CHECK(soft(RLIMIT_CORE) == std::min<rlim_t>(core.rlim_max, 1));  // 1: no crash handler is started either
        }) == 0);
}

void a_lower_limit_from_outside_stays() {
  CHECK(exit_code_in_child([] {
          const rlimit low{3, 3};
          CHECK(setrlimit(RLIMIT_CPU, &low) == 0);
          CHECK(apply_rlimits({.address_space_bytes = 1ull << 44, .cpu_s = 100, .file_bytes = 0}) == 0);
          CHECK(soft(RLIMIT_CPU) == 3);
        }) == 0);
}

void the_address_space_is_measured() {
  const AddressSpaceMeter meter;
  const uint64_t before = meter.bytes();
  constexpr size_t kMore = 64 << 20;
  void* more = mmap(nullptr, kMore, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(more != MAP_FAILED);
  CHECK(meter.bytes() == before + kMore);
  CHECK(munmap(more, kMore) == 0);
}

}  // namespace

int main() {
  limits_hold_in_the_process_that_sets_them();
  a_lower_limit_from_outside_stays();
  the_address_space_is_measured();
}
