// C++ programs in place of Python ones, and the zygote that runs them: a test program starts itself as its zygote.
// A program is a word and perhaps a number. What it is told to do between its words is what a hostile one would.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "seccomp_notify.h"
#include "zygote.h"

namespace rocstar::fake {

struct Done {
  int code = 0;
  std::string value = {};
  bool exits = false;
};

inline volatile sig_atomic_t interrupted = 0;
inline void take_interrupt(int) { interrupted = 1; }

inline void flood(int fd) {
  static const std::string kBlock(4096, 'x');
  while (write(fd, kBlock.data(), kBlock.size()) > 0) {
  }
}

inline void write_all(int fd, const void* bytes, size_t count) {
  if (write(fd, bytes, count) != static_cast<ssize_t>(count)) _exit(99);
}

inline void forge_reply(CellKind kind, int code) {
  const CellReply reply{kind, code, 0, 0};
  write_all(kControlFd, &reply, sizeof reply);
}

inline int count_fds() {
  int open_fds = 0;
  for (int fd = 0; fd < 200; ++fd) open_fds += fcntl(fd, F_GETFD) >= 0;
  return open_fds;
}

inline std::string names_here() {
  std::string names;
  DIR* directory = opendir(".");
  while (const dirent* entry = directory == nullptr ? nullptr : readdir(directory)) {
    if (entry->d_name[0] != '.') names += entry->d_name;
  }
  if (directory != nullptr) closedir(directory);
  return names;
}

// How many of `count` files could be made.
inline int create_files(int count) {
  int made = 0;
  for (int i = 0; i < count; ++i) {
    const int fd = open(std::to_string(i).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    made += fd >= 0;
    close(fd);
  }
  return made;
}

// Writes `size` times `letter` into the file "f" and into what is displayed first.
inline void fill_files(char letter, long size) {
  const std::string content(static_cast<size_t>(size), letter);
  mkdir(".display", 0700);
  for (const char* name : {"f", ".display/0"}) {
    const int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    write_all(fd, content.data(), content.size());
    close(fd);
  }
}

// Reads the supervisor's order to branch in the machinery's place; returns the new process's control socket.
inline int take_branch_order() {
  char bytes[64];
  bool again = false;
  Message order = receive_message(kControlFd, bytes, again);
  return order.fds.size() == 4 ? dup(order.fds[3].get()) : -1;
}

inline void announce_as(int control, pid_t pid) {
  const Birth birth{kReady, pid};
  write_all(control, &birth, sizeof birth);
}

// What a session can do to the supervisor by its own socket. Never returns.
[[noreturn]] inline void attack(const std::string& word, long number) {
  forge_reply(CellKind::kRun, 0);  // the cell seems to be over; it goes on
  if (word == "forge.twice") {
    forge_reply(CellKind::kRun, 0);
  } else if (word == "forge.loop") {
    signal(SIGXCPU, SIG_IGN);
    while (true) {
      getppid();
    }
  } else {
    const int control = take_branch_order();
    if (word == "branch.names") announce_as(control, static_cast<pid_t>(number));
    if (word == "branch.names.itself") announce_as(control, getpid());
    if (word == "branch.untied" || word == "branch.tied.to.nothing") {
      const long pid = syscall(SYS_clone, static_cast<unsigned long>(kBranchFlags), 0, 0, 0, 0);
      if (pid == 0) {  // as an honest branch, but for the death signal
        if (word == "branch.tied.to.nothing") syscall(SYS_prctl, PR_SET_PDEATHSIG, 1l << 32 | SIGKILL, kTieWord, 0, 0);
        announce_as(control, static_cast<pid_t>(syscall(SYS_getpid)));
        while (true) pause();
      }
    }
    if (word == "branch.half") write_all(control, "R", 1);
    if (word == "branch.stray") {
      const long pid = syscall(SYS_clone, static_cast<unsigned long>(kBranchFlags), 0, 0, 0, 0);
      if (pid == 0) {  // nobody hears of it: no announcement, no descriptor, no death signal
        syscall(SYS_close_range, 0U, ~0U, 0);
        signal(SIGXCPU, SIG_IGN);
        while (true) pause();
      }
    }
    if (word != "branch.silent") forge_reply(CellKind::kBranch, word == "branch.stray" ? EPERM : 0);
  }
  while (true) pause();
}

inline Done run_word(const std::string& word, long number) {
  static long state = 0;
  if (word == "exit") return {.code = static_cast<int>(number), .exits = true};
  if (word == "set") state = number;
  if (word == "get") return {.value = std::to_string(state)};
  if (word == "fail") return {.code = 1};
  if (word == "hang") pause();
  if (word == "sleep") {  // ends when it is interrupted, or was before it began
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    while (!interrupted) sigsuspend(&before);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return {.code = 1};
  }
  if (word == "hang.deaf") {
    signal(SIGINT, SIG_IGN);
    while (true) pause();
  }
  if (word == "write" || word == "write.exit") {
    const std::string block(static_cast<size_t>(number), 'x');
    for (size_t sent = 0; sent < block.size();) {
      const ssize_t n = write(1, block.data() + sent, block.size() - sent);
      if (n < 0) _exit(99);
      sent += static_cast<size_t>(n);
    }
    return {.exits = word == "write.exit"};
  }
  if (word == "value") return {.value = std::string(static_cast<size_t>(number), 'v')};
  if (word == "stop") raise(SIGSTOP);
  if (word == "flood") flood(static_cast<int>(number));
  if (word == "signal") raise(static_cast<int>(number));
  if (word == "denied") syscall(SYS_unshare, 0);
  if (word == "fds") return {.code = count_fds(), .exits = true};
  if (word == "files") return {.code = create_files(static_cast<int>(number)), .exits = true};
  if (word.starts_with("fill.")) fill_files(word.back(), number);
  if (word == "names") return {.value = names_here()};
  if (word == "pid") return {.value = std::to_string(getpid())};
  if (word == "parent") return {.code = kill(getppid(), 0) == 0 ? 0 : errno};
  if (word == "close") close(static_cast<int>(number));
  if (word == "keep.pipe") return {.code = dup(1) < 0};
  if (word == "echo") {
    char buffer[100];
    const ssize_t got = read(0, buffer, sizeof buffer);
    write_all(1, buffer, static_cast<size_t>(got));
    return {.value = "v"};
  }
  if (word.starts_with("forge.") || word.starts_with("branch.")) attack(word, number);
  return {};
}

inline Done run_code(const std::string& code) {
  const size_t space = code.find(' ');
  return run_word(code.substr(0, space), space == std::string::npos ? 0 : std::atol(code.c_str() + space));
}

inline int run_child(Child& child) {
  if (!child.session()) {
    const auto cell = child.next_cell();
    if (!cell) return 0;
    const Done done = run_code(cell->code);
    if (!done.value.empty()) write_all(kControlFd, done.value.data(), done.value.size());
    return done.code;
  }
  struct sigaction action{};
  action.sa_handler = take_interrupt;
  sigaction(SIGINT, &action, nullptr);
  while (const auto cell = child.next_cell()) {
    Done done = run_code(cell->code);
    if (cell->seed && cell->code == "seed") done.value = std::to_string(*cell->seed);
    if (done.exits) return done.code;
    interrupted = 0;
    child.reply(done.code, done.value);
  }
  return 0;
}

// What `main` of a test does when it finds itself started as a zygote.
inline int zygote_main() {
  const bool notify = notify_available();
  Zygote zygote(UniqueFd(3), {.seccomp = seccomp_available(), .notify = notify});
  zygote.hello("");
  zygote.serve(run_child);
  return 0;
}

inline bool is_zygote(int argc, char** argv) { return argc > 1 && std::strcmp(argv[1], "zygote") == 0; }

}  // namespace rocstar::fake
