// Scheduling priorities: the supervisor, which serves all programs, runs before programs if cores are short.
//
// Where the kernel makes a scheduling group of each session (setsid, autogroup), the nice values of its members count
// only within the group, and the group's value between groups. So both are set.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace rocstar {

// The supervisor's nice value. It sleeps most of the time.
inline constexpr int kFirstNice = -10;

// Raises the priority of this thread and its session's group, if privileged and not started with a lower priority, and
// sets a short time slice, which needs no privilege. Forked processes have the default priority again.
void raise_priority();

// Sets a short time slice, which forked processes inherit: a process that slept or has just started need not wait for
// the whole slice of another. For a zygote.
void set_short_slice();

// Sets the nice value of this process and of its session's group. proc: a descriptor of /proc if it has no path.
void lower_priority(int32_t nice, int proc = -1);

// Gives threads the default time slice: those of a program that runs for long.
void reset_slices(const std::vector<pid_t>& threads);

}  // namespace rocstar
