#include "cpp_child.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace rocstar {
namespace {

// Of the compiler.
char* const kEnvironment[] = {const_cast<char*>("PATH=/usr/local/bin:/usr/bin:/bin"), const_cast<char*>("LANG=C.UTF-8"),
                              const_cast<char*>("HOME=."), const_cast<char*>("TMPDIR=."), nullptr};

int write_source(const std::string& code) {
  const UniqueFd file(open(kSourceName, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return errno;
  for (size_t done = 0; done < code.size();) {
    const ssize_t n = write(file.get(), code.data() + done, code.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return errno;
    done += static_cast<size_t>(n);
  }
  return 0;
}

[[noreturn]] void compile(const std::string& code, const std::vector<std::string>& command) {
  if (const int error = write_source(code)) give_up(error);
  if (const int error = die_with_supervisor()) give_up(error);
  if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) give_up(errno);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  restore_signals();
  execve(arguments[0], arguments.data(), kEnvironment);
  give_up(errno);
}

[[noreturn]] void become_program(const std::string& preload) {
  Environment environment(preload);
  static char name[] = "./program";
  char* const arguments[] = {name, nullptr};
  for (const int fd : {kControlFd, kProgramFd}) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) give_up(errno);
  }
  restore_signals();
  syscall(SYS_execveat, kProgramFd, "", arguments, environment.words(), AT_EMPTY_PATH);
  give_up(errno);
}

}  // namespace

int run_cpp(Child& child, const std::vector<std::string>& command, const std::string& preload) {
  const std::optional<Cell> cell = child.next_cell();
  if (!cell) return 0;
  if (child.role() == Role::kCompiler) compile(cell->code, command);
  become_program(preload);
}

SeccompFilter& cpp_filter(Role role, bool truncate) {
  if (role == Role::kCompiler) {
    static SeccompFilter compiler(child_policy({.scratch = true, .truncate = truncate, .compiler = true}),
                                  newest_known_syscall());
    return compiler;
  }
  static SeccompFilter program(child_policy({.scratch = true, .truncate = truncate, .program = true}),
                               newest_known_syscall());
  return program;
}

}  // namespace rocstar
