// Read access to a list of paths, write access to one scratch directory, nothing else (Landlock, Linux >= 5.13, no
// privilege needed).
#pragma once

#include <string>
#include <vector>

#include "unique_fd.h"

namespace rocstar {

// The kernel's Landlock version; 0 when it has none.
int landlock_abi();

// A ruleset that lets its subjects read below `paths` (missing ones are skipped), write to /dev/null, and create,
// write and remove files and directories below `scratch`, if that is not empty. From ABI 4 it also forbids TCP bind
// and connect, from ABI 6 signals to and abstract sockets of processes outside the child. Throws std::system_error.
UniqueFd make_landlock_ruleset(const std::vector<std::string>& paths, const std::string& scratch);

// The same with more to say. executable: directories to read and execute below, or single files to execute.
// program: an open file to execute, wherever it lies or lay; -1: none.
struct Access {
  std::vector<std::string> readable;
  std::vector<std::string> executable;
  std::string scratch;
  int program = -1;
};
UniqueFd make_landlock_ruleset(const Access& access);

// Confines the calling thread for ever. Needs no_new_privs. Returns 0 or errno.
int enter_landlock(int ruleset);

}  // namespace rocstar
