// The pool's side for tests: a supervisor in a process of its own, requests in, answers out.
#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "check.h"
#include "fake_zygote.h"
#include "landlock.h"
#include "process.h"
#include "supervise.h"

namespace rocstar::fake {

struct Answer {
  FrameType type = FrameType::kFatal;
  Status status = Status::kOk;
  bool signaled = false;
  int32_t code = 0;
  uint32_t flags = 0;
  Failure why = Failure::kChildStart;
  std::string out, err, value, text;

  bool ok() const { return type == FrameType::kResult && status == Status::kOk; }
  bool failed(Failure how) const { return type == FrameType::kFailed && why == how; }
};

inline constexpr uint64_t kMinute = 60'000'000;
// The address sanitizer reserves terabytes.
inline constexpr uint64_t kMuch = 1ull << 44;

// Invariant that it checks itself: no request is answered twice, no session gone twice.
class Pool {
 public:
  explicit Pool(SupervisorOptions options = {.max_live = 3, .max_sessions = 8}) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    socket_.reset(ends[0]);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      socket_.reset();
      options.client_fd = ends[1];
      if (options.zygote_command.empty()) options.zygote_command = {"/proc/self/exe", "zygote"};
      if (options.flavours.empty()) options.flavours = {"fake"};
      if (options.memory_bytes == 0) options.memory_bytes = 64 * kMuch;
      if (options.lease_us == 0) options.lease_us = 600'000'000;
      options.hello_json = "{}";
      options.home = {.readable_paths = {"/"}, .landlock = landlock_abi() > 0, .scratch_bytes = 1 << 30};
      if (options.home.landlock && notify_available()) options.home.base = make_scratch_base("/tmp");
      Supervisor(std::move(options)).run();
      _exit(0);
    }
    close(ends[1]);
  }

  // The supervisor ends by itself and takes everything with it: children, and what they wrote.
  ~Pool() {
    socket_.reset();
    int status = 0;
    CHECK(waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (const auto& entry : std::filesystem::directory_iterator("/tmp")) {
      CHECK(!entry.path().filename().string().starts_with("rocstar-" + std::to_string(pid_) + "-"));
    }
  }

  uint64_t run(const std::string& code, Limits limits = some_limits(), uint8_t flavour = 0) {
    return ask({.type = FrameType::kRun,
                .limits = limits,
                .flavour = flavour,
                .code = code,
                .stdin_bytes = code == "echo" ? "input" : ""});
  }
  uint64_t run_for(uint64_t lane, const std::string& code, Limits limits = some_limits()) {
    return ask({.type = FrameType::kRun, .limits = limits, .lane = lane, .code = code});
  }
  uint64_t run_with(const std::string& input, const std::string& code) {
    return ask({.type = FrameType::kRun, .limits = some_limits(), .code = code, .stdin_bytes = input});
  }
  // The answer has the file "f" and what is displayed.
  uint64_t run_to_fetch(uint64_t lane, const std::string& code, Limits limits) {
    return ask({.type = FrameType::kRun,
                .limits = limits,
                .lane = lane,
                .code = code,
                .fetch = "f\n",
                .wants = kWantsDisplays});
  }
  uint64_t open(Limits limits = some_limits(), std::optional<uint64_t> seed = {}) {
    return ask({.type = FrameType::kOpen, .limits = limits, .seed = seed});
  }
  uint64_t opened(Limits limits = some_limits(), std::optional<uint64_t> seed = {}) {
    const uint64_t session = open(limits, seed);
    CHECK(answer(session).type == FrameType::kOpened);
    return session;
  }
  uint64_t cell(uint64_t session, const std::string& code, uint64_t wall_us = kMinute) {
    return ask({.type = FrameType::kCell, .session = session, .limits = {.wall_us = wall_us}, .code = code});
  }
  Answer run_cell(uint64_t session, const std::string& code, uint64_t wall_us = kMinute) {
    return answer(cell(session, code, wall_us));
  }
  uint64_t branch(uint64_t session) { return ask({.type = FrameType::kBranch, .session = session}); }
  void cancel(uint64_t id) { send_id(FrameType::kCancel, id); }
  void close_session(uint64_t session) { send_id(FrameType::kClose, session); }

  // Waits for the answer to a request.
  Answer answer(uint64_t id) {
    while (!answers_.contains(id)) read_frames();
    return answers_.at(id);
  }
  // By name, of an answer that has come.
  const std::map<std::string, std::string>& files(uint64_t id) { return files_[id]; }
  bool is_answered(uint64_t id) const { return answers_.contains(id); }
  GoneWhy gone(uint64_t session) {
    while (!gone_.contains(session)) read_frames();
    return gone_.at(session);
  }
  // How the process of a session ended that is gone.
  bool ended(uint64_t session, const std::string& how) const {
    return endings_.at(session).find(how) != std::string::npos;
  }
  // Asks whether the supervisor is there, and waits for its word.
  void ping(uint64_t number) {
    send_id(FrameType::kPing, number);
    while (!pongs_.contains(number)) read_frames();
  }
  // The pid of the `count`th zygote that got ready.
  pid_t zygote(size_t count = 1) {
    while (zygotes_.size() < count) read_frames();
    return zygotes_[count - 1];
  }
  // The last one of a flavour.
  pid_t zygote_of(uint8_t flavour) {
    while (!zygote_of_.contains(flavour)) read_frames();
    return zygote_of_.at(flavour);
  }
  std::string fatal() {
    while (fatal_.empty()) read_frames();
    return fatal_;
  }
  bool is_gone(uint64_t session) const { return gone_.contains(session); }
  // How many requests had been answered when a session was told to be gone.
  size_t answered_before_gone(uint64_t session) const { return answered_before_gone_.at(session); }
  pid_t supervisor() const { return pid_; }

  static Limits some_limits() {
    return {.wall_us = kMinute,
            .cpu_s = 60,
            .memory_bytes = kMuch,
            .output_bytes = 8192,
            .file_bytes = 1 << 20,
            .files = 4};
  }

 private:
  uint64_t ask(Request request) {
    request.id = ++last_id_;
    std::string bytes;
    append_request(bytes, request);
    send_all(bytes);
    return request.id;
  }

  void send_id(FrameType type, uint64_t id) {
    std::string bytes;
    append_id(bytes, type, id);
    send_all(bytes);
  }

  void send_all(const std::string& bytes) {
    CHECK(write(socket_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }

  void read_frames() {
    char buffer[4096];
    pollfd waiting{socket_.get(), POLLIN, 0};
    CHECK(poll(&waiting, 1, 100'000) == 1);
    const ssize_t got = read(socket_.get(), buffer, sizeof buffer);
    CHECK(got > 0);
    reader_.feed({buffer, static_cast<size_t>(got)});
    while (const auto frame = reader_.next()) take(*frame);
  }

  void take(const Frame& frame) {
    if (frame.type == FrameType::kHello) return;
    if (frame.type == FrameType::kFatal) {
      fatal_ = frame.payload;
      return;
    }
    if (frame.type == FrameType::kZygote) {
      zygotes_.push_back(static_cast<pid_t>(decode_id(frame.payload.substr(1))));
      zygote_of_[static_cast<uint8_t>(frame.payload[0])] = zygotes_.back();
      return;
    }
    const uint64_t id = decode_id(frame.payload.substr(0, 8));
    if (frame.type == FrameType::kFile) {
      const auto length = static_cast<unsigned char>(frame.payload[8]);
      files_[id][std::string(frame.payload.substr(9, length))] += frame.payload.substr(9 + length);
      return;
    }
    if (frame.type == FrameType::kPong) {
      pongs_.insert(id);
      return;
    }
    if (frame.type == FrameType::kGone) {
      answered_before_gone_[id] = answers_.size();
      CHECK(gone_.emplace(id, static_cast<GoneWhy>(frame.payload[8])).second);
      endings_[id] = frame.payload.substr(9);
      return;
    }
    Answer answer{.type = frame.type};
    if (frame.type == FrameType::kResult) {
      const ResultView result = decode_result(frame.payload);
      answer.status = result.status;
      answer.signaled = result.signaled;
      answer.code = result.code;
      answer.flags = result.flags;
      answer.out = result.out;
      answer.err = result.err;
      answer.value = result.value;
    } else if (frame.type == FrameType::kFailed) {
      answer.why = static_cast<Failure>(frame.payload[8]);
      answer.text = frame.payload.substr(9);
    }
    CHECK(answers_.emplace(id, answer).second);
  }

  pid_t pid_ = -1;
  UniqueFd socket_;
  FrameReader reader_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Answer> answers_;
  std::map<uint64_t, std::map<std::string, std::string>> files_;
  std::map<uint64_t, GoneWhy> gone_;
  std::map<uint64_t, std::string> endings_;
  std::map<uint64_t, size_t> answered_before_gone_;
  std::vector<pid_t> zygotes_;
  std::map<uint8_t, pid_t> zygote_of_;
  std::set<uint64_t> pongs_;
  std::string fatal_;
};

// Waits for a process that need not be our child to end.
inline void wait_for_end(pid_t pid) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return;
  pollfd waiting{pidfd.get(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 30'000) == 1);
}

// Whether it is in a call: in futex it waits for another thread, as it does where it has nothing to do.
inline bool is_in(long call, pid_t pid, pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/syscall");
  std::string number;
  return !(file >> number) || number == std::to_string(call);
}

// All threads of a process but its first, held still while they have nothing to do: one that is stopped elsewhere may
// have the heap's lock. None where tracing is not allowed, nor of the thread sanitizer, whose own sleep by the clock.
class HeldThreads {
 public:
  explicit HeldThreads(pid_t pid) {
    for (const pid_t thread : threads_of(pid)) {
      if (thread == pid) continue;
      while (!is_in(SYS_futex, pid, thread) && !is_in(SYS_nanosleep, pid, thread)) sched_yield();
      if (is_in(SYS_nanosleep, pid, thread)) continue;
      if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
      CHECK(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 && waitpid(thread, nullptr, __WALL) == thread);
      held_.push_back(thread);
    }
  }
  HeldThreads(const HeldThreads&) = delete;
  ~HeldThreads() { let_go(); }

  bool empty() const { return held_.empty(); }
  void let_go() {
    for (const pid_t thread : held_) CHECK(ptrace(PTRACE_DETACH, thread, nullptr, nullptr) == 0);
    held_.clear();
  }

 private:
  std::vector<pid_t> held_;
};

inline bool lives(pid_t pid) { return kill(pid, 0) == 0; }

}  // namespace rocstar::fake
