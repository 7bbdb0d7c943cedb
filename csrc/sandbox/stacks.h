// Memory that the C library reserves for threads, in proportion to what a program may have.
#pragma once

#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

// In a library of threads until glibc 2.34, which a program without threads does not load.
#pragma weak pthread_getattr_default_np
#pragma weak pthread_setattr_default_np
#pragma weak pthread_attr_setstacksize
#pragma weak pthread_attr_destroy

namespace rocstar {

// RLIMIT_AS counts what is reserved. With the C library's defaults, a stack of 8 MiB and an arena of 64 MiB for each
// thread, 15 threads would take 1 GiB: one arena for all, and stacks of which 64 take half of the program's memory.
// Written only when it changes: a zygote asks before every fork, and a page that is written is copied.
inline void bound_stacks(uint64_t memory_bytes) {
  static size_t now = 0;
  constexpr size_t kLeast = 512 << 10, kMost = 8 << 20;
  const size_t wanted = std::clamp<size_t>(memory_bytes / 128 & ~size_t{0xFFFF}, kLeast, kMost);
  if (now == wanted) return;
#if defined(__GLIBC__)
  if (now == 0) mallopt(M_ARENA_MAX, 1);
#endif
  now = wanted;
  if (pthread_getattr_default_np == nullptr) return;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, wanted) == 0) pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

}  // namespace rocstar
