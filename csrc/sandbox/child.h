// A confined process: how it becomes one, and how it gets its program, or the cells of its session.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "link.h"
#include "seccomp.h"

namespace rocstar {

// The data that a child needs to confine itself, all of it prepared before the fork.
struct Confinement {
  int input, output, error, control;  // become 0, 1, 2, 3
  int scratch = -1;                   // directory to start in,
  int base = -1;                      // or the one in which it is called `directory`: of one's own mounts
  int proc = -1;                      // /proc, where it has no path
  const char* directory = nullptr;
  int ruleset = -1;
  int program = -1;  // becomes kProgramFd
  Role role = Role::kInterpreter;
  uint32_t uid = 0;
  int32_t nice = 0;
  Rlimits limits;
  SeccompFilter* filter = nullptr;  // null: none
  pid_t parent;
};

struct Cell {
  std::string code;
  std::optional<uint64_t> seed;
  // The cell before was interrupted: a SIGINT that is pending may be its own. Otherwise it is this one's.
  bool after_interrupt = false;
};

class Child {
 public:
  explicit Child(bool session, Role role = Role::kInterpreter) : session_(session), role_(role) {}

  // The kept bytes of each stream and of a value. Written by the zygote when it changes.
  static uint64_t output_bytes;
  // A value for which the supervisor would kill, cut in the middle as the streams are. It cuts shorter ones itself.
  static std::string fit_value(std::string value);

  // Runs in the new process. All but 0..3 is closed and every layer active when it returns; a process that cannot
  // be confined says so on its control socket and exits.
  static void confine(const Confinement& how);

  bool session() const { return session_; }
  Role role() const { return role_; }
  // Waits for the next program or cell; nothing when the supervisor is gone. Branches are made meanwhile: a new
  // process returns from here with a cell of its own.
  std::optional<Cell> next_cell();
  // Reports the end of a cell. Only for sessions: a program exits.
  void reply(int code, const std::string& value);
  // Refuses branches with EBUSY while this returns true.
  bool (*has_threads)() = nullptr;

 private:
  bool read_exactly(char* to, size_t count, FdList* fds);
  void branch(FdList fds);

  bool session_;
  Role role_;
};

// Reports a failed start on the control socket and exits.
[[noreturn]] void give_up(int error);

// Where the C library keeps the id of this thread, the only one. Found once, by a fork: a zygote asks before it serves.
// Throws std::system_error.
int* thread_id();

// Of a process with descendants, before it starts the first: from here on the kernel kills its group when the
// supervisor closes its end of the control socket, and when anything arrives there. Returns 0 or errno.
int die_with_supervisor();

// Before a child becomes another program.
void restore_signals();

// What a program that a child executes finds: its directory as its home, and `preload` (csrc/sandbox/places.cpp) where
// it can be read. Gives up where the directory has no name.
class Environment {
 public:
  explicit Environment(const std::string& preload);
  char* const* words() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

// fork(2) without the C library's part: the new process is its parent's sibling, and has one thread.
pid_t fork_sibling(uint64_t flags);

// Flags for it from a zygote; a session's own are kBranchFlags.
uint64_t zygote_fork_flags();

}  // namespace rocstar
