// The questions that the kernel asks for a child, and that its own filter comes first.
#include "seccomp_notify.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"
#include "child.h"
#include "link.h"
#include "seccomp.h"

using namespace rocstar;

namespace {

// Runs `attempt` in a process that has the filter, and below it perhaps a child's; answers its questions.
struct Trial {
  int result = -1;  // errno of the attempt; -1 when it was killed
  std::vector<Question> asked;
  pid_t pid = -1;
};

Trial try_out(const std::function<long()>& attempt, int answer, const PolicyOptions* policy = nullptr,
              Counted counted = Counted::kNothing) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  Trial trial;
  trial.pid = fork();
  CHECK(trial.pid >= 0);
  if (trial.pid == 0) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    {
      const UniqueFd listener = install_notify_filter(counted);
      const int fd = listener.get();
      send_message(theirs.get(), "L", {&fd, 1});
    }
    if (policy != nullptr) {
      SeccompFilter filter(child_policy(*policy), newest_known_syscall());
      CHECK(filter.install(static_cast<uint32_t>(getpid())) == 0);
    }
    errno = 0;
    const int error = attempt() >= 0 ? 0 : errno;
    syscall(SYS_exit_group, error);
  }
  char buffer[8];
  bool again = false;
  const Message message = receive_message(ours.get(), buffer, again);
  CHECK(message.fds.size() == 1);
  pollfd waiting{message.fds[0].get(), POLLIN, 0};
  // Without anybody left who could ask, the listener hangs up.
  while (poll(&waiting, 1, 30'000) == 1 && !(waiting.revents & POLLHUP)) {
    answer_question(message.fds[0].get(), [&](const Question& question) {
      trial.asked.push_back(question);
      return answer;
    });
  }
  int status = 0;
  CHECK(waitpid(trial.pid, &status, 0) == trial.pid);
  if (WIFEXITED(status)) trial.result = WEXITSTATUS(status);
  return trial;
}

long create_file() { return open("/tmp/rocstar_test_notify", O_CREAT | O_WRONLY | O_CLOEXEC, 0600); }

void creating_is_asked_for_and_opening_is_not() {
  const Trial refused = try_out(create_file, EDQUOT);
  CHECK(refused.result == EDQUOT && refused.asked.size() == 1);
  CHECK(refused.asked[0].kind == Question::Kind::kCreate && refused.asked[0].thread == refused.pid);
  CHECK(access("/tmp/rocstar_test_notify", F_OK) != 0);
  const Trial allowed = try_out(create_file, 0);
  CHECK(allowed.result == 0 && unlink("/tmp/rocstar_test_notify") == 0);
  const Trial opened = try_out([] { return open("/dev/null", O_RDWR | O_CLOEXEC); }, EDQUOT);
  CHECK(opened.result == 0 && opened.asked.empty());
#ifdef SYS_creat
  const Trial created = try_out([] { return syscall(SYS_creat, "/tmp/rocstar_test_notify", 0600); }, EDQUOT);
  CHECK(created.result == EDQUOT && created.asked.size() == 1 && created.asked[0].kind == Question::Kind::kCreate);
#endif
  const Trial made = try_out([] { return mkdir("/tmp/rocstar_test_notify", 0700); }, EDQUOT);
  CHECK(made.result == EDQUOT && made.asked.size() == 1);
}

void a_signal_names_its_target() {
  const Trial refused = try_out([] { return kill(getppid(), 0); }, EPERM);
  CHECK(refused.result == EPERM && refused.asked.size() == 1);
  CHECK(refused.asked[0].kind == Question::Kind::kSignal && refused.asked[0].target == getpid());
  const Trial everybody = try_out([] { return kill(-1, 0); }, EPERM);
  CHECK(everybody.asked.size() == 1 && everybody.asked[0].target == -1);
}

void only_a_branch_asks_for_leave_to_fork() {
  const auto clone_with = [](unsigned long flags) {
    return [flags]() -> long {
      const long pid = syscall(SYS_clone, flags, 0, 0, 0, 0);
      if (pid == 0) syscall(SYS_exit_group, 0);
      return pid;
    };
  };
  const Trial refused = try_out(clone_with(kBranchFlags), EPERM);
  CHECK(refused.result == EPERM && refused.asked.size() == 1);
  CHECK(refused.asked[0].kind == Question::Kind::kBranch);
  const Trial plain = try_out(clone_with(SIGCHLD), EPERM);
  CHECK(plain.result == 0 && plain.asked.empty());  // a child's own filter refuses that one
  // The kernel ignores the upper half, and so must we.
  const Trial high = try_out(clone_with(kBranchFlags | 0x100000000), EPERM);
  CHECK(high.result == EPERM && high.asked.size() == 1);
}

void a_thread_asks_where_nobody_else_counts() {
  const auto start = []() -> long { return syscall(SYS_clone, CLONE_THREAD, 0, 0, 0, 0); };  // EINVAL if it came so far
  const Trial counted = try_out(start, EAGAIN, nullptr, Counted::kThreads);
  CHECK(counted.result == EAGAIN && counted.asked.size() == 1);
  CHECK(counted.asked[0].kind == Question::Kind::kThread);
  const Trial not_counted = try_out(start, EAGAIN);
  CHECK(not_counted.result == EINVAL && not_counted.asked.empty());
  const auto fork_myself = [] { return syscall(SYS_clone, kBranchFlags, 0, 0, 0, 0); };
  const Trial branch = try_out(fork_myself, EPERM, nullptr, Counted::kThreads);
  CHECK(branch.asked.size() == 1 && branch.asked[0].kind == Question::Kind::kBranch);
}

void a_process_asks_where_a_shell_starts_it_and_a_zygote_does_not() {
  const auto start = [](long number, unsigned long flags) {
    return [=]() -> long {
      const long pid = syscall(number, flags, 0, 0, 0, 0);
      if (pid == 0) syscall(SYS_exit_group, 0);
      return pid;
    };
  };
  std::vector<std::function<long()>> ways{start(SYS_clone, SIGCHLD), start(SYS_clone, CLONE_VFORK | SIGCHLD),
                                          start(SYS_clone, CLONE_THREAD)};
#if defined(__x86_64__)
  ways.push_back(start(SYS_fork, 0));
#endif
  for (const auto& way : ways) {
    const Trial refused = try_out(way, EAGAIN, nullptr, Counted::kProcesses);
    CHECK(refused.result == EAGAIN && refused.asked.size() == 1);
    const auto kind = refused.asked[0].kind;
    CHECK(kind == Question::Kind::kProcess || kind == Question::Kind::kThread);
  }
  const Trial zygote = try_out(start(SYS_clone, zygote_fork_flags()), EAGAIN, nullptr, Counted::kProcesses);
  CHECK(zygote.result == 0 && zygote.asked.empty());
}

void what_was_done_for_the_asker_succeeds() {
  // Not done by the kernel as well: it would have ended the asker.
  const Trial done = try_out([] { return kill(getpid(), SIGKILL); }, kDone);
  CHECK(done.result == 0 && done.asked.size() == 1 && done.asked[0].signal == SIGKILL && !done.asked[0].to_thread);
  const Trial thread = try_out([] { return syscall(SYS_tgkill, getpid(), gettid(), SIGTERM); }, kDone);
  CHECK(thread.result == 0 && thread.asked[0].signal == SIGTERM && thread.asked[0].to_thread);
}

void a_branch_says_that_it_will_die_with_us() {
  const auto tie = [](long signal, long word) {
    return [=]() -> long { return syscall(SYS_prctl, PR_SET_PDEATHSIG, signal, word, 0, 0); };
  };
  const Trial tied = try_out(tie(SIGKILL, kTieWord), 0);
  CHECK(tied.result == 0 && tied.asked.size() == 1);
  CHECK(tied.asked[0].kind == Question::Kind::kTie && tied.asked[0].target == tied.pid);
  for (const long signal : {0l, long{SIGTERM}, 1l << 32 | SIGKILL}) {
    const Trial loose = try_out(tie(signal, kTieWord), EINVAL);
    CHECK(loose.result == EINVAL && loose.asked.size() == 1 && loose.asked[0].target == 0);
  }
  CHECK(try_out([] { return prctl(PR_SET_NAME, "x", kTieWord, 0, 0); }, EINVAL).asked[0].target == 0);
  CHECK(try_out(tie(SIGKILL, 0), EINVAL).asked.empty());  // a program's own, before it has run anything
}

void the_childs_own_filter_is_stricter() {
  const PolicyOptions plain{}, scratch{.scratch = true}, session{.scratch = true, .session = true};
  CHECK(try_out(create_file, 0, &plain).result == EROFS);
  CHECK(try_out([] { return kill(getppid(), 0); }, 0, &scratch).result == EPERM);
  CHECK(try_out([] { return syscall(SYS_clone, kBranchFlags, 0, 0, 0, 0); }, 0, &scratch).result == EPERM);
  CHECK(try_out([] { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }, 0, &session).result == EPERM);
  CHECK(try_out([] { return kill(getppid(), 0); }, EPERM, &session).result == EPERM);
  CHECK(try_out([] { return kill(getpid(), 0); }, 0, &session).result == 0);
}

void an_asker_that_dies_does_not_stop_the_judge() {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    const UniqueFd listener = install_notify_filter(Counted::kNothing);
    const int fd = listener.get();
    send_message(theirs.get(), "L", {&fd, 1});
    create_file();
    _exit(0);
  }
  char buffer[8];
  bool again = false;
  const Message message = receive_message(ours.get(), buffer, again);
  pollfd waiting{message.fds[0].get(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 30'000) == 1 && (waiting.revents & POLLIN));
  // Killed between its question and our answer.
  const bool answered = answer_question(message.fds[0].get(), [pid](const Question&) {
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, nullptr, 0) == pid);
    return 0;
  });
  CHECK(!answered);
}

}  // namespace

int main() {
  if (!notify_available()) {
    std::puts("this kernel cannot ask: nothing was tested");
    return 0;
  }
  unlink("/tmp/rocstar_test_notify");  // of a run that failed
  creating_is_asked_for_and_opening_is_not();
  a_signal_names_its_target();
  only_a_branch_asks_for_leave_to_fork();
  a_thread_asks_where_nobody_else_counts();
  a_process_asks_where_a_shell_starts_it_and_a_zygote_does_not();
  what_was_done_for_the_asker_succeeds();
  a_branch_says_that_it_will_die_with_us();
  the_childs_own_filter_is_stricter();
  an_asker_that_dies_does_not_stop_the_judge();
}
