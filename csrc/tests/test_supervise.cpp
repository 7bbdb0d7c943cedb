// The whole loop with C++ programs in place of Python: requests in, children forked and killed, results out.
#include "supervise.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>

#include "check.h"

using namespace rocstar;

namespace {

int program(const Request& request) {
  const std::string& code = request.code;
  if (code == "hang") pause();
  if (code == "flood") {
    const std::string block(4096, 'x');
    while (write(1, block.data(), block.size()) > 0) {
    }
  }
  if (code == "signal") raise(SIGTERM);
  if (code == "denied") syscall(SYS_unshare, 0);
  if (code == "fds") {
    int open_fds = 0;
    for (int fd = 0; fd < 200; ++fd) open_fds += fcntl(fd, F_GETFD) >= 0;
    return open_fds;
  }
  if (code == "echo") {
    char buffer[100];
    const ssize_t got = read(0, buffer, sizeof buffer);
    return write(1, buffer, static_cast<size_t>(got)) == got && write(kValueFd, "v", 1) == 1 ? 0 : 1;
  }
  return 7;
}

struct Answer {
  FrameType type;
  bool signaled = false;
  int32_t code = 0;
  uint32_t flags = 0;
  std::string rest;
};

// Runs a supervisor in a process of its own, sends `requests`, and returns the answers by id.
class Session {
 public:
  explicit Session(size_t max_live, const Layers& layers = {.seccomp = seccomp_available(), .landlock = false}) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    socket_.reset(ends[0]);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      socket_.reset();
      if (layers.slot_uid) CHECK(seteuid(65534) == 0 || geteuid() != 0);  // no right to change it again
      Zygote zygote(layers);
      Supervisor(UniqueFd(ends[1]), zygote, max_live, program).run();
      _exit(0);
    }
    close(ends[1]);
  }

  ~Session() {
    socket_.reset();
    int status = 0;
    CHECK(waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }

  void run(uint64_t id, const std::string& code, uint64_t wall_us = 60'000'000) {
    Request request;
    request.id = id;
    request.wall_us = wall_us;
    request.cpu_s = 60;
    request.memory_bytes = 1ull << 44;  // the address sanitizer reserves terabytes
    request.output_bytes = 8192;
    request.code = code;
    request.stdin_bytes = code == "echo" ? "input" : "";
    std::string bytes;
    append_run(bytes, request);
    send_all(bytes);
  }

  void cancel(uint64_t id) {
    std::string bytes(5, '\0');
    const uint32_t length = 9;
    std::memcpy(bytes.data(), &length, sizeof length);
    bytes[4] = static_cast<char>(FrameType::kCancel);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
    send_all(bytes);
  }

  std::map<uint64_t, Answer> answers(size_t count) {
    std::map<uint64_t, Answer> got;
    char buffer[4096];
    while (got.size() < count) {
      const ssize_t n = read(socket_.get(), buffer, sizeof buffer);
      CHECK(n > 0);
      reader_.feed({buffer, static_cast<size_t>(n)});
      while (const auto frame = reader_.next()) {
        uint64_t id;
        std::memcpy(&id, frame->payload.data(), sizeof id);
        Answer answer{.type = frame->type};
        if (frame->type == FrameType::kResult) {
          answer.signaled = frame->payload[8] != 0;
          std::memcpy(&answer.code, frame->payload.data() + 9, 4);
          std::memcpy(&answer.flags, frame->payload.data() + 13, 4);
          answer.rest = frame->payload.substr(53);
        }
        CHECK(got.emplace(id, answer).second);
      }
    }
    return got;
  }

 private:
  void send_all(const std::string& bytes) {
    CHECK(write(socket_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }

  pid_t pid_ = -1;
  UniqueFd socket_;
  FrameReader reader_;
};

void each_end_is_told_as_it_was() {
  Session session(3);
  session.run(1, "exit");
  session.run(2, "signal");
  session.run(3, "hang", 20'000);
  session.run(4, "flood");
  session.run(5, "echo");
  session.run(6, "fds");
  session.run(7, "denied");
  std::map<uint64_t, Answer> got = session.answers(7);
  CHECK(!got[1].signaled && got[1].code == 7);
  CHECK(got[2].signaled && got[2].code == SIGTERM);
  CHECK(got[3].signaled && got[3].code == SIGKILL && (got[3].flags & Outcome::kTimedOut));
  CHECK(got[4].signaled && (got[4].flags & Outcome::kOutputLimit) && (got[4].flags & Outcome::kStdoutTruncated));
  CHECK(got[4].rest == std::string(8192, 'x'));
  CHECK(got[5].code == 0 && (got[5].flags & Outcome::kHasValue) && got[5].rest == "inputv");
  CHECK(got[6].code == 4);
  CHECK(!seccomp_available() || (got[7].signaled && got[7].code == SIGSYS));
}

void a_cancelled_call_ends_wherever_it_is() {
  Session session(1);
  session.run(1, "hang");
  session.run(2, "exit");
  session.cancel(2);  // still waiting
  session.cancel(1);  // running
  session.cancel(99);
  session.run(3, "exit");
  std::map<uint64_t, Answer> got = session.answers(3);
  CHECK(got[1].type == FrameType::kFailed && got[2].type == FrameType::kFailed);
  CHECK(got[3].type == FrameType::kResult && got[3].code == 7);
}

void many_calls_pass_through_few_slots() {
  Session session(2);
  for (uint64_t id = 1; id <= 50; ++id) session.run(id, "exit");
  CHECK(session.answers(50).size() == 50);
}

void a_child_that_cannot_be_confined_gives_no_result() {
  Session session(1, {.seccomp = false, .landlock = false, .slot_uid = true});
  session.run(1, "exit");
  session.run(2, "exit");
  std::map<uint64_t, Answer> got = session.answers(2);
  CHECK(got[1].type == FrameType::kFailed && got[2].type == FrameType::kFailed);
}

void a_closed_socket_ends_the_children() {
  Session session(2);
  session.run(1, "hang");
  session.run(2, "exit");
  session.answers(1);
}  // ~Session waits for the supervisor, which must kill the child that hangs

}  // namespace

int main() {
  each_end_is_told_as_it_was();
  a_cancelled_call_ends_wherever_it_is();
  many_calls_pass_through_few_slots();
  a_child_that_cannot_be_confined_gives_no_result();
  a_closed_socket_ends_the_children();
}
