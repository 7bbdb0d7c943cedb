// How the supervisor confines itself. It reads what hostile programs write; should one of them take it over, it finds a
// process that can start no program, make no code, open no socket and change no mount or user.
#pragma once

#include <linux/capability.h>

#include <initializer_list>
#include <string>

namespace rocstar {

// Of the supervisor: it ends, looks into and sorts processes of other users, and keeps their directories.
inline constexpr std::initializer_list<int> kSupervisorKeeps = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_SYS_NICE, CAP_SYS_PTRACE, CAP_SYS_RESOURCE};
// Of the starter: what zygotes need to hide processes from their children, and those to become other users.
inline constexpr std::initializer_list<int> kStarterKeeps = {CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN};
// Of a zygote that has hidden processes.
inline constexpr std::initializer_list<int> kZygoteKeeps = {CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID};

// Drops all other capabilities of this thread, from every set, and sets no_new_privs, so that none comes back.
void keep_capabilities(std::initializer_list<int> kept);

// Of the supervisor, once its starter is there and before its first thread: capabilities and a filter of system calls.
// Throws std::system_error where the kernel has seccomp and refuses the filter.
void confine_supervisor();

// The compiler's and linker's protections of this program, joined by "+".
std::string built_with();

}  // namespace rocstar
