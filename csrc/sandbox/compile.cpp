// C++ programs: a request becomes two children, one that compiles and one that runs what came of it. Between the two
// the request waits among the others, at their head. A program's limits and clock are those of the second alone.
#include "compile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "cpp_child.h"

namespace rocstar {
namespace {

// Nothing of the compiler is left that could hold it open for writing.
UniqueFd take_program(Home& home) {
  UniqueFd program(openat(home.directory(), kProgramName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info;
  const bool usable = program && fstat(program.get(), &info) == 0 && S_ISREG(info.st_mode) &&
                      fchmod(program.get(), S_IRUSR | S_IXUSR) == 0;
  home.clear();
  return usable ? std::move(program) : UniqueFd();
}

std::string failure_to_start(const std::string& said) {
  Birth word;
  if (said.size() != sizeof word) return "for an unknown reason";
  std::memcpy(&word, said.data(), sizeof word);
  return std::generic_category().message(word.what);
}

}  // namespace

bool Supervisor::is_cpp(uint8_t flavour) const { return options_.flavours[flavour] == "cpp"; }

Role Supervisor::role_of(const Request& request) const {
  if (request.compiled) return Role::kProgram;
  if (is_shell(request.flavour)) return Role::kShell;
  return is_cpp(request.flavour) ? Role::kCompiler : Role::kInterpreter;
}

uint64_t Supervisor::memory_needed(const Request& request) const {
  const uint64_t own = request.limits.memory_bytes;
  return role_of(request) == Role::kCompiler ? std::max(own, kCompilerMemoryBytes) : own;
}

Rlimits Supervisor::compiler_rlimits(const Request& request) const {
  return {.address_space_bytes = memory_needed(request),
          .cpu_s = std::max<uint64_t>(1, options_.compile_wall_us / 1'000'000),
          .file_bytes = kCompilerFileBytes};
}

uint64_t Supervisor::output_cap(const Process& process) const {
  return process.role == Role::kCompiler ? kCompilerOutputBytes : hard_cap(process.limits);
}

void Supervisor::end_compilation(Process& process, bool exited, int code) {
  Request request = std::move(process.request);
  if (process.flags & Outcome::kCancelled) {
    append_failed(outbox_.frames(), request.id, Failure::kCancelled, "cancelled");
    return;
  }
  if (process.flags & Outcome::kNoScratch) {
    append_failed(outbox_.frames(), request.id, Failure::kNodeScratch,
                  "the files of all programs together took too much room, and most of it was this one's");
    return;
  }
  if (exited && code == kSetupFailedExit && !process.word.empty()) {
    append_failed(outbox_.frames(), request.id, Failure::kChildStart,
                  "the compiler cannot be started: " + failure_to_start(process.word));
    return;
  }
  if (exited && code == 0 && (process.flags & kStopped) == 0) {
    UniqueFd program = take_program(*process.home);
    if (program) {
      request.compiled = std::make_shared<Compiled>(Compiled{process.home, std::move(program)});
      enqueue(0, std::move(request));
      return;
    }
  }
  Outcome outcome{.id = request.id, .code = 1, .out = {}, .err = process.err.kept().text()};
  if (!outcome.err.empty() && outcome.err.back() != '\n') outcome.err += '\n';
  if (process.flags & Outcome::kTimedOut) {
    const uint64_t milliseconds = options_.compile_wall_us / 1000;
    outcome.err += "compilation stopped: it took more than " + std::to_string(milliseconds) + " ms\n";
  } else if (process.flags & Outcome::kOutputLimit) {
    outcome.err += "compilation stopped: its messages were more than can be shown\n";
  } else if (!exited) {
    outcome.err += "compilation stopped: the compiler was killed by signal " + std::to_string(code) + "\n";
  } else if (code == 0) {
    outcome.err += "the compiler made no program\n";
  }
  if (process.err.kept().truncated()) outcome.flags |= Outcome::kStderrTruncated;
  append_result(outbox_.frames(), outcome, Status::kError);
}

// The program has not begun: what it wrote to the control socket are words of ours.
bool Supervisor::could_not_start(Process& process) {
  if ((process.role != Role::kProgram && process.role != Role::kShell) || process.word.empty()) return false;
  append_failed(outbox_.frames(), process.request.id, Failure::kChildStart,
                "the program cannot be started: " + failure_to_start(process.word));
  return true;
}

}  // namespace rocstar
