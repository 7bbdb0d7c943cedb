#include "supervise.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace rocstar {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

uint64_t microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000 + static_cast<uint64_t>(time.tv_usec);
}

constexpr uint32_t kKilled = Outcome::kTimedOut | Outcome::kOutputLimit | Outcome::kCancelled;

std::string setup_failure(const std::string& status, bool signaled, int code) {
  int error = 0;
  if (status.size() >= 1 + sizeof error && status[0] == kNotReady) {
    std::memcpy(&error, status.data() + 1, sizeof error);
    return "the child could not be confined: " + std::generic_category().message(error);
  }
  return "the child ended before it was confined: " + std::string(signaled ? "signal " : "exit code ") +
         std::to_string(code);
}

uint64_t hard_cap(const Request& request) {
  return kHardOutputFactor * std::max<uint64_t>(request.output_bytes, kSmallestOutputCap);
}

}  // namespace

Supervisor::Supervisor(UniqueFd client, Zygote& zygote, size_t max_live, Program program)
    : client_(std::move(client)),
      zygote_(zygote),
      program_(std::move(program)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      calls_(max_live) {
  if (!epoll_) fail("epoll_create1");
  if (fcntl(client_.get(), F_SETFL, O_NONBLOCK) != 0) fail("fcntl(O_NONBLOCK)");
  for (size_t slot = max_live; slot-- > 0;) free_.push_back(static_cast<uint32_t>(slot));
  watch(client_.get(), Source::kClient, 0, EPOLLIN);
}

void Supervisor::run() {
  try {
    loop();
  } catch (...) {
    kill_all();
    throw;
  }
  kill_all();
}

void Supervisor::loop() {
  std::array<epoll_event, 64> events;
  while (client_open_) {
    start_pending();
    flush_client();
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), next_timeout_ms());
    if (count < 0 && errno != EINTR) fail("epoll_wait");
    // A slot freed in this batch is filled in the next: a stale event then finds nothing to read.
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      handle(static_cast<Source>(tag >> 32), static_cast<uint32_t>(tag), events[static_cast<size_t>(i)].events);
    }
    expire();
  }
}

void Supervisor::watch(int fd, Source source, uint32_t slot, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = static_cast<uint64_t>(source) << 32 | slot}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

void Supervisor::handle(Source source, uint32_t slot, uint32_t events) {
  if (source == Source::kClient) {
    if (events & EPOLLOUT) flush_client();
    if (events & ~static_cast<uint32_t>(EPOLLOUT)) read_client();
    return;
  }
  Call& call = calls_[slot];
  if (!call.live) return;
  if (source == Source::kOut) drain(call, call.out);
  if (source == Source::kErr) drain(call, call.err);
  if (source == Source::kValue) drain(call, call.value);
  if (source == Source::kPidfd) reap(slot);
}

// --- the pool's side ---------------------------------------------------------------------------------------

void Supervisor::read_client() {
  static char buffer[256 << 10];
  const ssize_t got = read(client_.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    client_open_ = false;
    return;
  }
  reader_.feed({buffer, static_cast<size_t>(got)});
  while (const std::optional<Frame> frame = reader_.next()) handle_frame(*frame);
}

void Supervisor::handle_frame(const Frame& frame) {
  if (frame.type == FrameType::kRun) {
    pending_.push_back(decode_run(frame.payload));
  } else if (frame.type == FrameType::kCancel) {
    cancel(decode_cancel(frame.payload));
  } else {
    throw ProtocolError("the pool sent a frame of unknown type");
  }
}

// The call may have ended meanwhile: its result is then on the way and nothing is left to do.
void Supervisor::cancel(uint64_t id) {
  for (Call& call : calls_) {
    if (call.live && call.request.id == id) kill(call, Outcome::kCancelled);
  }
  const auto waiting =
      std::find_if(pending_.begin(), pending_.end(), [id](const Request& request) { return request.id == id; });
  if (waiting == pending_.end()) return;
  append_failed(outbox_, id, "cancelled before it started");
  pending_.erase(waiting);
}

void Supervisor::flush_client() {
  while (sent_ < outbox_.size()) {
    const ssize_t n = send(client_.get(), outbox_.data() + sent_, outbox_.size() - sent_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      client_open_ = false;
      return;
    }
    sent_ += static_cast<size_t>(n);
  }
  // Dropping the head only once it is half of all keeps a slow reader's cost linear.
  if (sent_ * 2 >= outbox_.size()) {
    outbox_.erase(0, sent_);
    sent_ = 0;
  }
  if (outbox_.empty() == !watching_writes_) return;
  watching_writes_ = !outbox_.empty();
  const uint32_t interest = watching_writes_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  epoll_event event{.events = interest, .data = {.u64 = static_cast<uint64_t>(Source::kClient) << 32}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client_.get(), &event) != 0) fail("epoll_ctl");
}

// --- the children's side -----------------------------------------------------------------------------------

void Supervisor::start_pending() {
  while (!pending_.empty() && !free_.empty()) {
    Request request = std::move(pending_.front());
    pending_.pop_front();
    const uint32_t slot = free_.back();
    const uint64_t id = request.id;
    try {
      start(std::move(request), slot);
    } catch (const std::system_error& error) {
      append_failed(outbox_, id, error.what());
      continue;
    }
    free_.pop_back();
  }
}

void Supervisor::start(Request request, uint32_t slot) {
  const Rlimits limits{
      .address_space_bytes = zygote_.baseline_address_space() + request.memory_bytes,
      .cpu_s = request.cpu_s,
      .file_bytes = request.file_bytes,
      .processes = zygote_.layers().slot_uid ? 64u : 0u,
  };
  ForkResult forked = zygote_.fork(limits, request.stdin_bytes, slot);
  if (forked.in_child) _exit(program_(request));

  Call& call = calls_[slot];
  call.child = std::move(forked.handle);
  call.started = Clock::now();
  call.deadline = call.started + std::chrono::microseconds(request.wall_us);
  call.flags = 0;
  call.out = Capture(std::move(call.child.out), request.output_bytes);
  call.err = Capture(std::move(call.child.err), request.output_bytes);
  call.value = Capture(std::move(call.child.value), request.output_bytes + 1);
  call.request = std::move(request);
  call.request.code = {};
  call.request.stdin_bytes = {};
  call.live = true;
  watch(call.child.pidfd.get(), Source::kPidfd, slot, EPOLLIN);
  watch(call.out.fd(), Source::kOut, slot, EPOLLIN);
  watch(call.err.fd(), Source::kErr, slot, EPOLLIN);
  watch(call.value.fd(), Source::kValue, slot, EPOLLIN);
}

void Supervisor::drain(Call& call, Capture& stream) {
  stream.drain();
  if (stream.total() > hard_cap(call.request)) kill(call, Outcome::kOutputLimit);
}

void Supervisor::kill(Call& call, Outcome::Flag why) {
  if (call.flags & kKilled) return;
  call.flags |= why;
  syscall(SYS_pidfd_send_signal, call.child.pidfd.get(), SIGKILL, nullptr, 0);
}

void Supervisor::reap(uint32_t slot) {
  Call& call = calls_[slot];
  siginfo_t info{};
  rusage usage{};
  const long done = syscall(SYS_waitid, P_PIDFD, call.child.pidfd.get(), &info, WEXITED | WNOHANG, &usage);
  if (done != 0) fail("waitid");
  if (info.si_pid == 0) return;
  for (Capture* stream : {&call.out, &call.err, &call.value}) {
    // A dead child's pipe holds at most its capacity: this ends.
    while (stream->drain()) {
    }
    if (stream->total() > hard_cap(call.request)) call.flags |= Outcome::kOutputLimit;
  }
  report(call, info.si_code != CLD_EXITED, info.si_status, microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
         static_cast<uint64_t>(usage.ru_maxrss) * 1024);
  call = Call{};
  free_.push_back(slot);
}

void Supervisor::report(Call& call, bool signaled, int code, uint64_t cpu_us, uint64_t maxrss_bytes) {
  const uint64_t id = call.request.id;
  if (call.flags & Outcome::kCancelled) {
    append_failed(outbox_, id, "cancelled");
    return;
  }
  const std::string& status = call.value.raw();
  if (status.empty() || status[0] != kReady) {
    append_failed(outbox_, id, setup_failure(status, signaled, code));
    return;
  }
  Outcome outcome{.id = id, .signaled = signaled, .code = code, .flags = call.flags};
  const auto wall = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - call.started);
  outcome.wall_us = static_cast<uint64_t>(wall.count());
  outcome.cpu_us = cpu_us;
  outcome.peak_bytes = maxrss_bytes - std::min(maxrss_bytes, zygote_.baseline_resident());
  outcome.out = call.out.text();
  outcome.err = call.err.text();
  outcome.value = call.value.text().substr(1);
  if (call.out.truncated()) outcome.flags |= Outcome::kStdoutTruncated;
  if (call.err.truncated()) outcome.flags |= Outcome::kStderrTruncated;
  if (!outcome.value.empty()) outcome.flags |= Outcome::kHasValue;
  append_result(outbox_, outcome);
}

void Supervisor::expire() {
  const Clock::time_point now = Clock::now();
  for (Call& call : calls_) {
    if (call.live && now >= call.deadline) kill(call, Outcome::kTimedOut);
  }
}

// Children that were killed already wait for their pidfd, not for the clock.
int Supervisor::next_timeout_ms() const {
  auto next = Clock::time_point::max();
  for (const Call& call : calls_) {
    if (call.live && (call.flags & kKilled) == 0) next = std::min(next, call.deadline);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Supervisor::kill_all() {
  for (Call& call : calls_) {
    if (!call.live) continue;
    kill(call, Outcome::kCancelled);
    siginfo_t info{};
    syscall(SYS_waitid, P_PIDFD, call.child.pidfd.get(), &info, WEXITED, nullptr);
    call = Call{};
  }
}

}  // namespace rocstar
