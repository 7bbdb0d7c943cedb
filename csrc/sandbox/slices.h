// How soon a process that others wait for gets a core when all are taken.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace rocstar {

// Of a process that answers for many: it works for a fraction of a millisecond at a time.
inline constexpr uint64_t kShortSliceNs = 100'000;

// Asks the scheduler for short slices: who needs the core only for a moment is next sooner, and gets no more of it in
// all. Processes and threads that it starts later have the usual ones. Linux 6.12 and later; before, nothing changes.
// False where the kernel refuses.
bool take_short_slices();

// What a process asked for, in nanoseconds; 0 for nothing, or where the kernel does not say.
uint64_t slice_ns_of(pid_t pid);

}  // namespace rocstar
