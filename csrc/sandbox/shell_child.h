// Bash programs. The child becomes bash, which starts tools of the machine; all of them have the child's filter,
// ruleset, limits and process group, and end with it or with the supervisor, whichever is first (process_groups.cpp).
//
//   reads      the system's libraries, and the tools themselves
//   executes   bash and the tools that the pool names (sandbox/child/bash.py), and the loader that starts them; nothing
//              that a program has written
//   writes     in its scratch directory
#pragma once

#include <string>
#include <string_view>

#include "child.h"

namespace rocstar {

// A program is one argument of bash, and the kernel takes none that is longer (32 pages, its end included).
inline constexpr size_t kMostShellBytes = 128 * 1024 - 1;

// Files that a shell program's tools may have at a time, for each of `files`.
inline constexpr uint64_t kShellFiles = 16;

// Runs in a confined child of role kShell. `bash`: its path. `preload`: a library for it and its
// tools. Returns only when the supervisor is gone.
int run_shell(Child& child, const std::string& bash, const std::string& preload);

// The system call filter for such a child, compiled when it is first asked for.
SeccompFilter& shell_filter(bool truncate);

// Writes the files that come before a program (sandbox/files.py) into the working directory and takes them from the
// front of `code`. Returns 0 or errno; EINVAL for what is no such pack.
int unpack_files(std::string_view& code);

}  // namespace rocstar
