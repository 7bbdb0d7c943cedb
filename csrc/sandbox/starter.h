// Starts zygotes for the supervisor: a process that it forks before it confines itself (guard.h), after which it can
// start no program. A zygote is forked here with CLONE_PARENT and so is the supervisor's own child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "unique_fd.h"

namespace rocstar {

struct ZygoteCommand {
  std::vector<std::string> words;     // `--flavour`, `--fd` and `--parent` are appended
  std::vector<std::string> flavours;  // by number
  std::string preload;                // LD_PRELOAD of a zygote; empty: none
  std::string directory;              // in which it starts; empty: as it is
  int proc = -1;                      // a /proc that can be written to; -1: none
};

class Starter {
 public:
  // Forks the process, which ends with this one and when its socket is closed. Throws std::system_error.
  explicit Starter(const ZygoteCommand& command);

  // Starts a zygote with `socket` as its descriptor 3 and returns its pid. Throws std::system_error.
  pid_t start(uint8_t flavour, int socket);

  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace rocstar
