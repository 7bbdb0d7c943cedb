// The fork server inside a warm Python process: takes orders from the supervisor and forks confined children, which
// are the supervisor's own (CLONE_PARENT), not its. It sees no program and no output, only orders.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "child.h"
#include "seccomp.h"
#include "seccomp_notify.h"
#include "unique_fd.h"

namespace rocstar {

// The layers of every child of one zygote besides no_new_privs and rlimits, which all have.
struct Layers {
  bool seccomp = true;
  bool notify = true;                   // the supervisor is asked about new files, signals and branches
  bool truncate = true;                 // by path: Landlock's ABI 3 can say where
  Counted counted = Counted::kNothing;  // what else the supervisor is asked about
  bool hides = false;                   // children have no /proc, as far as this user may do that (namespaces.h)
};

class Zygote {
 public:
  // Installs the notification filter and reports it to the supervisor; measures the memory of an idle child.
  // Throws std::system_error.
  Zygote(UniqueFd supervisor, const Layers& layers);

  // Sends the first message to the supervisor. `json` may be empty if the zygote is ready.
  void hello(const std::string& json);

  // Serves orders until the supervisor is gone. `run` is called in each child, which never returns from here.
  void serve(const std::function<int(Child&)>& run);

 private:
  SeccompFilter& filter_of(const ForkOrder& order);
  void confine(const PolicyOptions& policy);
  void fork(const ForkOrder& order, const FdList& fds, const std::function<int(Child&)>& run);

  UniqueFd supervisor_;
  Layers layers_;
  AddressSpaceMeter meter_;
  uint64_t baseline_resident_ = 0;
  UniqueFd proc_;  // what children have no more, for what is done before a program
  UniqueFd base_;  // of scratch directories, among the mounts of this process, where it has its own
  bool confined_ = false;
  bool used_up_ = false;  // free memory, see compact.h
};

// Says FATAL on the socket: the zygote cannot be.
void say_fatal(int supervisor, const std::string& json);

// Says what it is at, in words that go behind "while": where it was, should it die.
void say_at(int supervisor, const std::string& what);

// The parent's death kills this process; `parent` is checked against the one that may be gone already.
bool die_with_parent(pid_t parent);

// Backs the interpreter's heap with huge pages where the kernel can (Linux >= 6.1): forking copies fewer page
// tables. Returns the number of bytes asked for and granted.
uint64_t collapse_heap();

}  // namespace rocstar
