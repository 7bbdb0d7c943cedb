#include "supervise.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "directory_tree.h"
#include "process.h"

namespace rocstar {

void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

namespace {

// source | generation | index, so that an event of a process that is gone is told from its successor's.
uint64_t tag_of(uint8_t source, uint32_t generation, uint32_t index) {
  return static_cast<uint64_t>(source) << 56 | static_cast<uint64_t>(generation & 0xFFFFFF) << 32 | index;
}

// Those for which there are descriptors: two pipes, a socket, a handle of the process, a directory and its rules, each.
uint32_t most_sessions(const SupervisorOptions& options) {
  constexpr uint64_t kEach = 6, kOwn = 96, kOfZygote = 4;
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return UINT32_MAX;
  const uint64_t others = kOwn + kOfZygote * options.flavours.size() * options.replicas + 2 * kEach * options.max_live;
  return static_cast<uint32_t>(std::max<uint64_t>(files.rlim_cur > others ? (files.rlim_cur - others) / kEach : 0, 1));
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_(std::move(options)),
      client_(options_.client_fd),
      starter_({.words = options_.zygote_command,
                .flavours = options_.flavours,
                .preload = options_.preload,
                .directory = options_.zygote_directory,
                .proc = options_.proc}),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      homes_(options_.home),
      pending_(options_.flavours.size() + 1) {
  if (!epoll_) fail("epoll_create1");
  options_.max_sessions = std::min(options_.max_sessions, most_sessions(options_));
  if (fcntl(client_.get(), F_SETFL, O_NONBLOCK) != 0) fail("fcntl(O_NONBLOCK)");
  watch(client_.get(), Source::kClient, 0, 0, EPOLLIN);
  watch(incoming_.fd(), Source::kWorker, 0, 0, EPOLLIN);
  watch(outgoing_.fd(), Source::kWorker, 1, 0, EPOLLIN);
  for (size_t flavour = 0; flavour < options_.flavours.size(); ++flavour) {
    has_shell_ = has_shell_ || is_shell(static_cast<uint8_t>(flavour));
    for (uint32_t replica = 0; replica < options_.replicas; ++replica) {
      auto server = std::make_unique<Server>();
      server->index = static_cast<uint32_t>(servers_.size());
      server->flavour = static_cast<uint8_t>(flavour);
      servers_.push_back(std::move(server));
    }
  }
}

Supervisor::~Supervisor() {
  kill_all();
  if (!options_.zygote_directory.empty())
    remove_tree(options_.zygote_directory.substr(0, options_.zygote_directory.rfind('/')));
}

void Supervisor::run() {
  // What a compiler or a shell leaves behind is taken by this process, not by the machine's first.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) fail("prctl(PR_SET_CHILD_SUBREAPER)");
  for (const auto& server : servers_) start_zygote(*server);
  if (options_.warm_before) say_hello();
  loop();
}

void Supervisor::loop() {
  std::array<epoll_event, 128> events;
  while (client_open_) {
    start_pending();
    if (outbox_.ready(Clock::now())) flush_client();
    watch_slow();
    if (Clock::now() < strangers_until_) reap_strangers();
    if (looks_at_sessions() && Clock::now() >= next_look_) look_at_sessions();
    if (looks_at_scratch() && Clock::now() >= next_scratch_look_) look_at_scratch();
    if (looks_at_groups() && Clock::now() >= next_group_watch_) look_at_groups();
    look_for_ended_groups();
    const Clock::time_point asked = Clock::now();
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), next_timeout_ms());
    if (count < 0 && errno == EINTR) continue;  // somebody stopped us, and nothing was told of what happened meanwhile
    if (count < 0) fail("epoll_wait");
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      handle(event.data.u64, event.events);
    }
    // After a pause of ours more may have ended than one look tells, in time, whatever their deadlines are by now.
    const bool full = count == static_cast<int>(events.size()) && ++full_rounds_ < kMostFullRounds;
    if (full) continue;
    full_rounds_ = 0;
    end_late_zygotes(asked);
    expire(asked);  // what happened until then has been heard, whatever a pause since then was like
  }
}

void Supervisor::watch(int fd, Source source, uint32_t index, uint32_t generation, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = tag_of(static_cast<uint8_t>(source), generation, index)}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  if (errno != EEXIST || epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) fail("epoll_ctl");
}

void Supervisor::handle(uint64_t tag, uint32_t events) {
  const auto source = static_cast<Source>(tag >> 56);
  const auto generation = static_cast<uint32_t>(tag >> 32) & 0xFFFFFF;
  const auto index = static_cast<uint32_t>(tag);
  if (source == Source::kClient) {
    if (events & EPOLLOUT) flush_client();
    if (events & ~static_cast<uint32_t>(EPOLLOUT)) read_client();
    return;
  }
  if (source == Source::kListener) return read_listener(index, events);
  if (source == Source::kWorker) return (index == 0 ? incoming_ : outgoing_).finish();
  if (source == Source::kZygote || source == Source::kZygoteEnd) {
    Server& server = *servers_[index];
    if ((server.generation & 0xFFFFFF) != generation) return;
    if (source == Source::kZygote) read_zygote(server);
    if (source == Source::kZygoteEnd) zygote_ended(server);
    return;
  }
  Process& process = processes_[index];
  if (process.state == Process::State::kFree || (process.generation & 0xFFFFFF) != generation) return;
  if (source == Source::kOut) drain(process, process.out);
  if (source == Source::kErr) drain(process, process.err);
  if (source == Source::kControl) {
    if (events & EPOLLOUT) flush_control(process);
    if (events & ~static_cast<uint32_t>(EPOLLOUT)) read_control(process);
  }
  if (source == Source::kPidfd) reap(process);
}

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
  switch (frame.type) {
    case FrameType::kRun:
    case FrameType::kOpen:
    case FrameType::kCell:
    case FrameType::kBranch: {
      const bool is_long = frame.payload.size() >= kLongFrameBytes;
      Request request = decode_request(frame.type, frame.payload, is_long ? reader_.keep() : nullptr);
      const bool of_session = frame.type == FrameType::kCell || frame.type == FrameType::kBranch;
      if (!of_session && request.flavour >= options_.flavours.size()) throw ProtocolError("no such flavour");
      if (request.type == FrameType::kOpen && options_.max_sessions == 0) {
        append_failed(outbox_.frames(), request.id, Failure::kFull, "this pool holds no sessions (max_sessions is 0)");
        return;
      }
      if (frame.type == FrameType::kOpen && (is_cpp(request.flavour) || is_shell(request.flavour))) {
        throw ProtocolError("C++ and bash have no sessions");
      }
      return take_request(std::move(request));
    }
    case FrameType::kCancel:
      return cancel(decode_id(frame.payload));
    case FrameType::kClose:
      return close_session(decode_id(frame.payload), GoneWhy::kClosed);
    case FrameType::kPing:
      return append_id(outbox_.frames(), FrameType::kPong, decode_id(frame.payload));
    default:
      throw ProtocolError("the pool sent a frame of unknown type");
  }
}

// Behind those that came before it, once its input is written.
void Supervisor::take_request(Request request) {
  const uint64_t arrival = arrivals_++;
  if (request.stdin_bytes.size() < kLong) return enqueue(arrival, std::move(request));
  arriving_.insert(request.id);
  const uint64_t lane = request.lane;
  const auto job = std::make_shared<InputJob>(std::move(request));
  incoming_.take(lane, job, [this, arrival, job] {
    if (arriving_.erase(job->request.id) > 0) enqueue(arrival, std::move(job->request));
  });
}

// The call may have ended meanwhile: its answer is then on the way and nothing is left to do.
void Supervisor::cancel(uint64_t id) {
  if (arriving_.erase(id) > 0) {
    append_failed(outbox_.frames(), id, Failure::kCancelled, "cancelled before it started");
    return;
  }
  for (auto& queue : pending_) {
    const auto waiting =
        std::find_if(queue.begin(), queue.end(), [id](const auto& item) { return item.second.id == id; });
    if (waiting == queue.end()) continue;
    append_failed(outbox_.frames(), id, Failure::kCancelled, "cancelled before it started");
    forget_lane(dequeue(queue, waiting).lane);
    return;
  }
  for (Process& process : processes_) {
    const bool under_way = process.state != Process::State::kFree && process.state != Process::State::kIdle;
    if (under_way && process.request.id == id) return stop(process, Outcome::kCancelled);
  }
}

void Supervisor::close_session(uint64_t number, GoneWhy why, std::string_view how) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  Process& session = processes_[found->second];
  wake(session);
  sessions_.erase(found);
  session.lost = true;
  append_gone(frames_of(number), number, why, how);
  kill(session, Outcome::kCancelled);
}

void Supervisor::flush_client() {
  for (size_t sent = 0; outbox_.size() > 0 && sent < kMostSent;) {
    const std::string_view unsent = outbox_.unsent().substr(0, kMostSent - sent);
    const ssize_t n = send(client_.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      client_open_ = false;
      return;
    }
    sent += static_cast<size_t>(n);
    std::string spent = outbox_.drop(static_cast<size_t>(n));
    if (spent.size() >= kLong) free_beside(std::move(spent));
  }
  const bool more = outbox_.size() > 0;
  if (more == watching_writes_) return;
  watching_writes_ = more;
  watch(client_.get(), Source::kClient, 0, 0, more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Supervisor::set_deadline(Process& process, Clock::time_point when) {
  deadlines_.erase({process.deadline, process.index});
  process.deadline = when;
  if (when != Clock::time_point::max()) deadlines_.insert({when, process.index});
}

void Supervisor::expire(Clock::time_point now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Process& process = processes_[deadlines_.begin()->second];
    set_deadline(process, Clock::time_point::max());
    if (process.state == Process::State::kIdle) {
      close_session(process.number, GoneWhy::kExpired);
    } else if (process.state == Process::State::kStarting && process.server != nullptr && !process.control) {
      give_again(process);
    } else if (process.state == Process::State::kStarting && process.server != nullptr) {
      syscall(SYS_pidfd_send_signal, process.server->pidfd.get(), SIGKILL, nullptr, 0);
    } else if (process.state == Process::State::kStarting) {
      start_failed(process, "the branch was never born");
    } else {
      stop(process, Outcome::kTimedOut);
    }
  }
}

int Supervisor::next_timeout_ms() const {
  const Clock::time_point now = Clock::now();
  auto next = deadlines_.empty() ? Clock::time_point::max() : deadlines_.begin()->first;
  if (now < strangers_until_) next = std::min(next, now + kStrangersLook);
  if (looks_at_sessions()) next = std::min(next, next_look_);
  if (looks_at_scratch()) next = std::min(next, next_scratch_look_);
  if (awaits_space_) next = std::min(next, now + kScratchLook);
  if (looks_at_groups()) next = std::min(next, next_group_watch_);
  if (!ending_groups_.empty()) next = std::min(next, now + kGroupLook);
  for (const auto& server : servers_) {
    if (may_be_late(*server)) next = std::min(next, server->late);
  }
  if (!young_.empty()) next = std::min(next, young_.front().since + kYoung);
  if (const auto due = outbox_.due()) next = std::min(next, *due);
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace rocstar
