// Theory of operation
//
//   pool (Python, asyncio)          one per node, in the trainer
//     |  stream socket, both ways: frames of protocol.h
//   zygote (this loop)              one per flavour; a warm Python interpreter with a single thread
//     |  fork per call
//   child                           runs one program, confined by zygote.cpp, then exits
//
// Between zygote and child, per call:
//   0 stdin    a sealed memfd, or /dev/null when there is no input
//   1 stdout   pipe; its head is kept up to output_bytes
//   2 stderr   pipe; the same
//   3 value    pipe; one byte 'R' once the child is confined, then the repr of the trailing expression
//   pidfd      held by the zygote: readable when the child has ended, and what SIGKILL is sent through
//
// Who waits for whom: the pool waits for one RESULT or FAILED frame per RUN frame; the zygote waits in epoll for the
// socket, pipes and pidfds, at most until the next wall clock deadline; a child waits for nobody. A call is over
// when its pidfd says so: by then the kernel has closed the child's pipe ends, so one last read gets everything.
// How it ended comes from waitid and from what this loop did to it, never from anything that the child wrote.
//
// Deaths: socket closed -> the zygote kills and reaps all children and returns. Zygote killed -> every child gets
// SIGKILL (PR_SET_PDEATHSIG). Pool killed -> the socket closes and the zygote gets SIGKILL the same way.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "capture.h"
#include "protocol.h"
#include "zygote.h"

namespace rocstar {

// A stream may grow to this many times its cap before the program is killed: cutting is mercy, a flood is not.
inline constexpr uint64_t kHardOutputFactor = 4;
// Below this a cap kills no sooner: a program that may show nothing can still print a little.
inline constexpr uint64_t kSmallestOutputCap = 4096;

// Invariants: every RUN frame gets exactly one RESULT or FAILED frame, while the socket lives; at most `max_live`
// children exist at a time; no child outlives `run`.
class Supervisor {
 public:
  // Runs in the child and returns its exit code.
  using Program = std::function<int(const Request&)>;

  Supervisor(UniqueFd client, Zygote& zygote, size_t max_live, Program program);

  // Returns when the socket closes. Throws ProtocolError or std::system_error, after killing all children.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    bool live = false;
    Request request;
    ChildHandle child;
    Capture out, err, value;
    Clock::time_point started, deadline;
    uint32_t flags = 0;
  };

  enum class Source : uint32_t { kClient, kPidfd, kOut, kErr, kValue };

  void loop();
  void start_pending();
  void start(Request request, uint32_t slot);
  void watch(int fd, Source source, uint32_t slot, uint32_t events);
  void handle(Source source, uint32_t slot, uint32_t events);
  void read_client();
  void handle_frame(const Frame& frame);
  void cancel(uint64_t id);
  void flush_client();
  void drain(Call& call, Capture& stream);
  void reap(uint32_t slot);
  void report(Call& call, bool signaled, int code, uint64_t cpu_us, uint64_t maxrss_bytes);
  void kill(Call& call, Outcome::Flag why);  // the first reason stands
  void expire();
  int next_timeout_ms() const;
  void kill_all();

  UniqueFd client_;
  Zygote& zygote_;
  Program program_;
  UniqueFd epoll_;
  FrameReader reader_;
  std::string outbox_;
  size_t sent_ = 0;  // of outbox_
  bool client_open_ = true;
  bool watching_writes_ = false;
  std::deque<Request> pending_;
  std::vector<Call> calls_;  // by slot
  std::vector<uint32_t> free_;
};

}  // namespace rocstar
