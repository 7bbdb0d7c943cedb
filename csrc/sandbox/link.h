// Messages between supervisor, zygotes and children. A program's bytes never reach a zygote, so that the state of a
// zygote, which every later child inherits, is the same for all.
//
// supervisor -> zygote    one packet per order (SOCK_SEQPACKET): ForkOrder, with the child's descriptors attached
// zygote -> supervisor    packets of ZygoteWord: 'H' hello and 'F' fatal with JSON, 'L' with the notification
//                         listener attached, 'E' with a ForkError, 'A' with its step before it is ready
// supervisor -> child     over the control socket, which is the child's descriptor 3: a CellHeader and the code;
//                         a branch order has the descriptors of the new process attached. A program may be sent
//                         before its child exists; only the child reads it, once it is confined
// child -> supervisor     first 'R' and the pid once it is confined, or 'F' and errno. A program then writes the
//                         repr of its value. A session writes a CellReply and the repr, after each cell. A child
//                         of the C++ or bash flavour that cannot start what it should writes a second 'F' and errno
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rlimits.h"
#include "unique_fd.h"

namespace rocstar {

// Descriptors of a child, the same in each: the standard three, and the control socket.
inline constexpr int kControlFd = 3;
inline constexpr int kFirstOtherFd = 4;
// The file of a compiled program; closed when the program starts.
inline constexpr int kProgramFd = 4;
// The control socket of a shell program and its processes, whose end kills them. Above the numbers that programs
// choose, and below their limit.
inline constexpr int kLifelineFd = 250;

inline constexpr char kReady = 'R';
inline constexpr char kNotReady = 'F';
// The exit code of a child that has reported a failed start.
inline constexpr int kSetupFailedExit = 125;

// The multiple of its cap that a stream may reach before the program is killed.
inline constexpr uint64_t kHardOutputFactor = 4;
// Smaller caps count as this one for the kill, so that a program with cap 0 may still print a little.
inline constexpr uint64_t kSmallestOutputCap = 4096;

// The role of a child. Children that start processes keep them in their process group.
enum class Role : uint8_t {
  kInterpreter,  // of a Python program, or of a session's cells
  kCompiler,     // of a C++ program
  kProgram,      // compiled before: its file is attached, open
  kShell         // of a bash program, which starts others
};

constexpr bool has_descendants(Role role) { return role == Role::kCompiler || role == Role::kShell; }

struct ForkOrder {
  uint32_t child;  // the supervisor's name for it, returned with an error
  Role role;
  uint8_t session;
  uint8_t has_scratch;    // the directory and the ruleset are attached
  uint32_t uid;           // 0: keep
  int32_t nice;           // above the zygote's own
  Rlimits limits;         // address space: above the zygote's own
  uint64_t output_bytes;  // of a stream, and of a value, that are kept
  char directory[40];     // the scratch directory's name within the base
};

enum class ZygoteWord : char { kHello = 'H', kFatal = 'F', kListener = 'L', kForkError = 'E', kAt = 'A' };

struct ForkError {
  uint32_t child;
  int32_t error;
};

// The first message of a child.
struct [[gnu::packed]] Birth {
  char state;    // kReady or kNotReady
  int32_t what;  // pid, or errno
};

enum class CellKind : uint8_t { kRun = 1, kBranch = 2 };

struct [[gnu::packed]] CellHeader {
  enum Flag : uint8_t { kHasSeed = 1, kAfterInterrupt = 2 };
  CellKind kind;
  uint8_t flags;
  uint64_t seed;
  uint32_t code_bytes;
};

struct [[gnu::packed]] CellReply {
  CellKind kind;
  int32_t code;         // exit code of the cell; of a branch 0 or errno
  uint64_t peak_bytes;  // of the process so far; a session's own word
  uint32_t value_bytes;
};

// The descriptors of a message. Throws std::system_error.
struct Message {
  size_t bytes = 0;  // 0: the other end is closed
  FdList fds;
  pid_t sender = -1;  // the kernel's word, where it was asked for (SO_PASSCRED)
};

void send_message(int socket, std::string_view bytes, std::span<const int> fds);
// Blocks unless the socket does not; then `bytes` is 0 and errno EAGAIN, and `would_block` is set.
Message receive_message(int socket, std::span<char> buffer, bool& would_block);

}  // namespace rocstar
