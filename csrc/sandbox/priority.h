// Who comes first where cores are short: the supervisor, which answers for all programs, before programs.
//
// Where the kernel makes each session (setsid) a group of its own to the scheduler (autogroup), its members' own
// values say nothing against others': the group's does. So both are set.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace rocstar {

// Of the supervisor, above processes of the usual priority: it sleeps most of the time.
inline constexpr int kFirstNice = -10;

// Raises this thread and its session's group, where there is the right and nobody chose a lower priority; and asks for
// short time slices, for which no right is needed. What is forked from here has the usual priority again.
void come_first();

// Asks for short time slices, which what is forked from here has as well: to have slept, or just begun, is then not to
// wait for the whole turn of one who has not. For a zygote.
void come_soon();

// Lowers this process by `nice`, and its session's group to that. proc: a descriptor of /proc where that has no path.
void stand_back(int32_t nice, int proc = -1);

// Gives threads the usual time slices: those of a program that has not ended soon.
void take_turns(const std::vector<pid_t>& threads);

}  // namespace rocstar
