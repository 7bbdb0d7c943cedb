// Namespaces of the whole sandbox, entered once by the supervisor and inherited by zygotes and children: a second
// layer behind the system call filter and Landlock that costs a child nothing.
//
//   net     no interface but a loopback that is down
//   ipc     System V and POSIX message objects of its own
//   uts     a host name of its own
//   mount   everything read-only; homes, /run, /var and other places that hold people's files are empty; the scratch
//           directories are on a tmpfs with a size limit for all programs together,
//           and /proc/meminfo and /proc/cpuinfo have their contents from the start of the sandbox
//   user    for who needs it to have the others: an ordinary user, with one id, and root of a container, with all
//
// No pid namespace: its first process would have to be the supervisor, whose pids then mean nothing outside, and what
// it would hide can be neither signalled nor read anyway.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rocstar {

struct NamespaceOptions {
  std::string scratch_parent;
  std::vector<std::string> kept_paths;  // what zygotes import from: not hidden
  // Folders into which only their owner may go, with kept paths below: nothing but those is left there, and every user
  // may go to them.
  std::vector<std::string> private_folders;
  bool keep_users = false;  // rather none of these than one of users that has only one's own
};

// True when all could be entered; false, and nothing was changed, when the kernel or the container refuses. A base of
// scratch directories must have been made before (everything is read-only after), and be mounted next.
bool enter_namespaces(const NamespaceOptions& options);

// In a zygote whose children have no use for /proc: mounts of its own, in which nothing is there but what is frozen, as
// far as that can be had. With hidepid one number is refused otherwise than another once its own process has looked it
// up, so who exists shows. False, and nothing was changed, when this user may not have mounts of its own.
bool hide_processes();

// A tmpfs on the base of the scratch directories. Throws std::system_error.
void mount_scratch(const std::string& base, uint64_t bytes);

}  // namespace rocstar
