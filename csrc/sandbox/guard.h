// Confines the supervisor. It reads data of hostile programs; if one of them takes it over, the process cannot start
// programs, create code, open sockets, or change mounts or users.
#pragma once

#include <linux/capability.h>

#include <initializer_list>
#include <string>

namespace rocstar {

// The supervisor's capabilities: it ends and inspects processes of other users, and manages their directories.
inline constexpr std::initializer_list<int> kSupervisorKeeps = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_SYS_NICE, CAP_SYS_PTRACE, CAP_SYS_RESOURCE};
// The starter's capabilities: zygotes need them to hide processes from their children, which become other users.
inline constexpr std::initializer_list<int> kStarterKeeps = {CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN};
// The capabilities of a zygote that has hidden processes.
inline constexpr std::initializer_list<int> kZygoteKeeps = {CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID};

// Drops all other capabilities of this thread, from every set, and sets no_new_privs, so that none comes back.
void keep_capabilities(std::initializer_list<int> kept);

// Drops capabilities and installs a system call filter in the supervisor, after its starter and before its first
// thread. Throws std::system_error if the kernel has seccomp and rejects the filter.
void confine_supervisor();

// The compiler's and linker's protections of this program, joined by "+".
std::string built_with();

}  // namespace rocstar
