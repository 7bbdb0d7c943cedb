// What a zygote does to its memory before it forks.
#include "compact.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "check.h"

using namespace rocstar;

namespace {

long pages_taken() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Free blocks between others, as an interpreter has them after its imports: each on a page of its own.
void scatter_free_blocks(std::vector<void*>& kept, size_t blocks) {
  constexpr size_t kBlock = 3000;
  std::vector<void*> freed;
  for (size_t i = 0; i < blocks; ++i) {
    freed.push_back(std::malloc(kBlock));
    kept.push_back(std::malloc(kBlock));
  }
  for (void* block : freed) std::free(block);
}

// How many pages a child changes that asks for so many bytes at a time.
int pages_of_a_child(const std::vector<size_t>& sizes) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    const long before = pages_taken();
    for (const size_t size : sizes) {
      auto* const block = static_cast<volatile char*>(std::malloc(size));
      *block = 1;
    }
    _exit(static_cast<int>(pages_taken() - before));
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
  return WEXITSTATUS(status);
}

void children_find_free_memory_in_order() {
  constexpr size_t kBlocks = 100;
  std::vector<void*> kept;
  scatter_free_blocks(kept, kBlocks);
  use_up_free_memory();
  CHECK(pages_of_a_child({50'000}) < static_cast<int>(kBlocks) / 4);
  for (void* block : kept) std::free(block);
}

// A free block of each size lies on a page of its own, and the library gives each to who asks for its size.
void children_find_free_memory_together() {
  constexpr size_t kSmallest = 48, kLargest = 1008, kStep = 16, kBetween = 6000, kPage = 4096;
  std::vector<void*> kept, freed;
  std::vector<size_t> sizes;
  size_t bytes = 0;
  for (size_t size = kSmallest; size <= kLargest; size += kStep) {
    freed.push_back(std::malloc(size));
    kept.push_back(std::malloc(kBetween));
    sizes.push_back(size);
    bytes += size + kStep;
  }
  for (void* block : freed) std::free(block);
  use_up_free_memory();
  constexpr size_t kOthers = 6;  // the stack, the library's own data
  CHECK(pages_of_a_child(sizes) <= static_cast<int>(bytes / kPage + kOthers));
  for (void* block : kept) std::free(block);
}

// The sanitizer's allocator has an order of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

int main() {
  if (kSanitized) return 0;
  children_find_free_memory_in_order();
  children_find_free_memory_together();
}
