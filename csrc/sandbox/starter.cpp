#include "starter.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>
#include <system_error>

#include "guard.h"
#include "link.h"
#include "zygote.h"

namespace rocstar {
namespace {

constexpr int kZygoteFd = 3;  // of a zygote; the starter has its own socket there

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

// Replaces the process by a zygote. Its standard input is empty.
[[noreturn]] void become_zygote(const ZygoteCommand& command, uint8_t flavour, int socket, pid_t parent) {
  std::vector<std::string> words = command.words;
  words.push_back("--flavour=" + command.flavours[flavour]);
  words.push_back("--fd=" + std::to_string(kZygoteFd));
  words.push_back("--parent=" + std::to_string(parent));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  // One list with what is preloaded already, first: a sanitizer's runtime refuses any other place.
  std::string preload;
  for (char** word = environ; *word != nullptr; ++word) {
    if (std::string_view(*word).starts_with("LD_PRELOAD=") && !command.preload.empty()) {
      preload = std::string(*word) + ":" + command.preload;
    } else {
      environment.push_back(*word);
    }
  }
  if (preload.empty()) preload = "LD_PRELOAD=" + command.preload;
  if (!command.preload.empty()) environment.push_back(preload.data());
  environment.push_back(nullptr);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (dup2(null.get(), 0) < 0 || dup2(socket, kZygoteFd) < 0) _exit(126);
  if (!command.directory.empty() && chdir(command.directory.c_str()) != 0) _exit(126);
  if (die_with_parent(parent)) execve(arguments[0], arguments.data(), environment.data());
  _exit(127);
}

// Inherited by every zygote and child: when the machine runs out of memory, the kernel takes a program, not the
// supervisor.
void go_first(int proc) {
  const UniqueFd score(openat(proc, "self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score && write(score.get(), "500", 3) < 0) return;  // lower than this already, by someone's choice
}

// Serves orders until the supervisor is gone: a flavour's number with a socket attached, answered by a pid or -errno.
[[noreturn]] void serve(const ZygoteCommand& command, pid_t supervisor) {
  keep_capabilities(kStarterKeeps);
  if (!die_with_parent(supervisor)) _exit(0);
  while (true) {
    char flavour;
    bool again = false;
    const Message order = receive_message(kZygoteFd, {&flavour, 1}, again);
    if (again) continue;
    const auto number = static_cast<uint8_t>(flavour);
    if (order.bytes != 1 || order.fds.size() != 1 || number >= command.flavours.size()) _exit(0);
    const long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) become_zygote(command, number, order.fds[0].get(), supervisor);
    const int32_t answer = pid < 0 ? -errno : static_cast<int32_t>(pid);
    if (write(kZygoteFd, &answer, sizeof answer) != sizeof answer) _exit(0);
  }
}

}  // namespace

Starter::Starter(const ZygoteCommand& command) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail(errno, "socketpair");
  socket_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  const pid_t supervisor = getpid(), pid = fork();
  if (pid < 0) fail(errno, "fork");
  if (pid > 0) return;
  try {
    prctl(PR_SET_NAME, "rocstar-starter");
    go_first(command.proc);
    // Nothing else of the supervisor is open here: its lock on users, its client, its control group.
    const bool moved = theirs.get() == kZygoteFd || dup3(theirs.get(), kZygoteFd, O_CLOEXEC) == kZygoteFd;
    if (moved && syscall(SYS_close_range, kZygoteFd + 1, ~0U, 0) == 0) serve(command, supervisor);
  } catch (const std::exception&) {  // a message cannot be read, or there is no memory: the supervisor ends as well
  }
  _exit(1);
}

pid_t Starter::start(uint8_t flavour, int socket) {
  const char order = static_cast<char>(flavour);
  send_message(socket_.get(), {&order, 1}, {&socket, 1});
  int32_t answer = 0;
  ssize_t got;
  while ((got = read(socket_.get(), &answer, sizeof answer)) < 0 && errno == EINTR) {
  }
  if (got != sizeof answer) fail(got < 0 ? errno : EPIPE, "the starter of zygotes has ended");
  if (answer < 0) fail(-answer, "fork of a zygote");
  return answer;
}

}  // namespace rocstar
