// C++ programs, in two confined processes one after the other (compile.cpp): the first becomes the compiler, the
// second the program. Neither runs Python, and neither can do what only the other needs.
//
//   compiler   reads, writes and removes files in its scratch directory; reads and executes what lies below the
//              tool paths; has descendants, all in its process group
//   program    as a Python program: no descendants, no other program. The one that it becomes is open already and
//              has no name any more; its scratch directory is empty
#pragma once

#include <string>
#include <vector>

#include "child.h"

namespace rocstar {

inline constexpr char kSourceName[] = "main.cpp";
inline constexpr char kProgramName[] = "program";

// The limits of a compiler. Its address space is the larger of this and the program's.
inline constexpr uint64_t kCompilerMemoryBytes = 2ull << 30;
inline constexpr uint64_t kCompilerFileBytes = 64ull << 20;
inline constexpr uint64_t kCompilerFiles = 64;
// Messages beyond this end it. A program's own cap says only how many are kept: most are warnings.
inline constexpr uint64_t kCompilerOutputBytes = 64ull << 20;

// Runs in a confined child of role kCompiler or kProgram. `command`: the compiler's path and its arguments.
// `preload`: a library for the program. Returns only when the supervisor is gone.
int run_cpp(Child& child, const std::vector<std::string>& command, const std::string& preload);

// The system call filter for such a child, compiled when it is first asked for.
SeccompFilter& cpp_filter(Role role, bool truncate);

}  // namespace rocstar
