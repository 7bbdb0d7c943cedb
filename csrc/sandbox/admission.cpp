// What may start when. A program under way counts with all the memory it may take, an idle session with what it
// holds, so that the sum stays below the machine's; idle sessions give way. Lanes (a batch, an owner) share the places:
// first by how many each has, then, where that is equal, by the time for which it had them. With one place, or with
// more lanes than places, all wait with nothing under way, and who has waited longest would come first for ever.
#include <algorithm>
#include <cerrno>
#include <optional>

#include "process.h"

namespace rocstar {
namespace {

uint32_t spare_places(const SupervisorOptions& options) { return std::max(1u, options.max_live / 8); }

}  // namespace

void Supervisor::start_pending() {
  // A write that fails for files of another owner that are being removed would count as the program's own error.
  awaits_space_ = homes_.waits_for_space() && std::ranges::any_of(pending_, [](const Queue& q) { return !q.empty(); });
  if (awaits_space_) return;
  while (!starved_ && under_way_ < options_.max_live + spare_places(options_) && start_next()) {
  }
}

// Of those whose zygote or session can take them, the oldest of the lane that has least under way. One that waits for
// memory holds back all later ones, or small programs would keep a large one waiting for ever; but not a small one of
// a lane that has nothing: an eighth of the memory is spare for those.
bool Supervisor::start_next() {
  struct Place {
    Rank rank;
    Queue* queue;
    Queue::iterator item;
  };
  std::optional<Place> next, spare;
  const bool full = under_way_ >= options_.max_live;
  for (Queue& waiting : pending_) {
    for (auto item = waiting.begin(); item != waiting.end(); ++item) {
      const auto& [arrival, request] = *item;
      const Rank rank = rank_of(arrival, request);
      if (full && !may_have_spare_place(rank, request)) continue;
      const bool better = !next || rank < next->rank;
      const bool for_spare = std::get<0>(rank) == 0 && (!spare || rank < spare->rank) && fits_in_spare(request);
      if ((!better && !for_spare) || !may_start(request)) continue;
      if (better) next = Place{rank, &waiting, item};
      if (for_spare) spare = Place{rank, &waiting, item};
    }
  }
  if (!next) return false;
  const bool of_session = next->queue == &pending_.back();
  const Request& first = next->item->second;
  if (!(of_session ? has_room_for_cell(first) : has_room_for_child(first))) {
    if (!spare) return false;
    next = spare;
  }
  const bool cell = next->queue == &pending_.back();
  Request request = dequeue(*next->queue, next->item);
  const uint64_t lane = request.lane;
  if (cell) {
    start_in_session(std::move(request));
  } else {
    Server& server = *server_for(request.flavour);
    order_child(std::move(request), server);
  }
  forget_lane(lane);
  return true;
}

// Of an owner that has nothing under way: what others have there may take its time. Only owners, for every call without
// one is a lane by itself.
bool Supervisor::may_have_spare_place(const Rank& rank, const Request& request) const {
  const auto& [under_way, had_s, arrival] = rank;
  return arrival != 0 && under_way == 0 && (request.lane & kOwnersLane) != 0;
}

bool Supervisor::may_start(const Request& request) {
  if (request.type == FrameType::kRun || request.type == FrameType::kOpen) {
    return server_for(request.flavour) != nullptr && (request.type != FrameType::kOpen || may_open());
  }
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) return true;
  const Process& session = processes_[found->second];
  return session.state == Process::State::kIdle && session.offspring == nullptr;
}

// Arrival 0: it had its turn before, and is next. A session's cells are of its lane.
void Supervisor::enqueue(uint64_t arrival, Request request) {
  const bool of_session = request.type == FrameType::kCell || request.type == FrameType::kBranch;
  const uint8_t flavour = request.flavour;
  const auto found = of_session ? sessions_.find(request.session) : sessions_.end();
  if (found != sessions_.end()) {
    request.lane = processes_[found->second].lane;
    request.weight = processes_[found->second].weight;
  }
  Lane& lane = lanes_.try_emplace(request.lane, Lane{.had_s = had_s_}).first->second;
  ++lane.waiting;
  lane.weight = request.weight;
  Queue& queue = of_session ? pending_.back() : pending_[request.flavour];
  if (arrival == 0) {
    queue.emplace_front(arrival, std::move(request));
  } else {
    queue.emplace_back(arrival, std::move(request));
  }
  if (!of_session && unfit_ > 0) try_unfit(flavour);
}

// Its lane may have nothing left after that: see forget_lane.
Request Supervisor::dequeue(Queue& queue, Queue::iterator item) {
  Request request = std::move(item->second);
  queue.erase(item);
  --lanes_.at(request.lane).waiting;
  return request;
}

void Supervisor::forget_lane(uint64_t number) {
  const auto found = lanes_.find(number);
  if (found != lanes_.end() && found->second.waiting == 0 && found->second.under_way == 0) lanes_.erase(found);
}

Supervisor::Rank Supervisor::rank_of(uint64_t arrival, const Request& request) const {
  if (arrival == 0) return {0, -1, 0};
  const Lane& lane = lanes_.at(request.lane);
  return {static_cast<double>(lane.under_way) / lane.weight, lane.had_s, arrival};
}

void Supervisor::begin_work(Process& process) {
  process.kills_before = look_for_victims();
  process.began = begin_turn(process.lane).began;
}

// A compiler and its program are one turn, which takes the time of both.
void Supervisor::end_work(const Process& process) { end_turn({process.lane, process.began}); }

Supervisor::Turn Supervisor::begin_turn(uint64_t number) {
  ++under_way_;
  Lane& lane = lanes_.try_emplace(number, Lane{.had_s = had_s_}).first->second;
  ++lane.under_way;
  had_s_ = std::max(had_s_, lane.had_s);
  return {number, Clock::now()};
}

void Supervisor::end_turn(const Turn& turn) {
  --under_way_;
  Lane& lane = lanes_.at(turn.lane);
  --lane.under_way;
  lane.had_s += std::chrono::duration<double>(Clock::now() - turn.began).count() / lane.weight;
  forget_lane(turn.lane);
}

uint64_t Supervisor::bytes_to_start(const Request& request) const {
  if (request.type == FrameType::kRun || request.type == FrameType::kOpen) return memory_needed(request);
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) return 0;
  const Process& session = processes_[found->second];
  if (request.type == FrameType::kBranch) return session.limits.memory_bytes;
  return session.limits.memory_bytes - std::min(session.reserved_bytes, session.limits.memory_bytes);
}

bool Supervisor::fits_in_spare(const Request& request) {
  const uint64_t spare = options_.memory_bytes / 8, bytes = bytes_to_start(request);
  if (reserved_bytes_ + bytes > options_.memory_bytes + spare) weigh_idle();
  return bytes <= spare && reserved_bytes_ + bytes <= options_.memory_bytes + spare;
}

void Supervisor::start_in_session(Request request) {
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) {
    append_failed(outbox_.frames(), request.id, Failure::kSessionLost, "there is no such session");
  } else if (request.type == FrameType::kCell) {
    start_cell(std::move(request), processes_[found->second]);
  } else {
    start_branch(std::move(request), processes_[found->second]);
  }
}

bool Supervisor::has_room_for_cell(const Request& request) {
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) return true;
  return make_room(bytes_to_start(request), &processes_[found->second]);
}

bool Supervisor::has_room_for_child(const Request& request) {
  if (request.type == FrameType::kOpen && sessions_.size() + opening_ >= options_.max_sessions) {
    if (Process* victim = most_numerous_idle(nullptr)) close_session(victim->number, GoneWhy::kEvicted);
  }
  return make_room(memory_needed(request), nullptr);
}

bool Supervisor::make_room(uint64_t bytes, const Process* spared) {
  if (reserved_bytes_ + bytes > options_.memory_bytes) weigh_idle();
  // Nobody gives way to one that would have to wait all the same.
  uint64_t idle = 0;
  for (const auto& [when, index] : idle_) idle += &processes_[index] == spared ? 0 : processes_[index].reserved_bytes;
  if (under_way_ > 0 && reserved_bytes_ - idle + bytes > options_.memory_bytes) return false;
  while (reserved_bytes_ + bytes > options_.memory_bytes) {
    Process* victim = heaviest_idle(spared);
    if (victim == nullptr) return under_way_ == 0;  // nothing is left to wait for: it runs with what there is
    evict(*victim);
  }
  return true;
}

void Supervisor::evict(Process& session) {
  reserved_bytes_ -= session.reserved_bytes;
  session.reserved_bytes = 0;
  close_session(session.number, GoneWhy::kEvicted);
}

// A session that finds no place and nobody idle waits, and others pass it.
bool Supervisor::may_open() { return sessions_.size() + opening_ < options_.max_sessions || !idle_.empty(); }

// The least recently used of the lane that has most sessions: who has few keeps them.
Supervisor::Process* Supervisor::most_numerous_idle(const Process* spared) {
  std::unordered_map<uint64_t, uint64_t> number;
  for (const auto& [_, index] : sessions_) ++number[processes_[index].lane];
  Process* victim = nullptr;
  for (const auto& [when, index] : idle_) {
    Process& one = processes_[index];
    if (&one == spared) continue;
    if (victim == nullptr || number[one.lane] > number[victim->lane]) victim = &one;
  }
  return victim;
}

// Without descriptors an idle session gives way, and the request waits for its end; with nobody idle, for any end.
// False when there is nothing to wait for.
bool Supervisor::starve(Request& request, int error) {
  if (error != EMFILE && error != ENFILE) return false;
  Process* victim = most_numerous_idle(nullptr);
  if (victim == nullptr && under_way_ == 0) return false;
  if (victim != nullptr) evict(*victim);
  enqueue(0, std::move(request));
  starved_ = true;
  return true;
}

// The least recently used of the lane whose idle sessions hold most: who holds little keeps it.
Supervisor::Process* Supervisor::heaviest_idle(const Process* spared) {
  std::unordered_map<uint64_t, uint64_t> held;
  for (const auto& [when, index] : idle_) held[processes_[index].lane] += processes_[index].reserved_bytes;
  Process* victim = nullptr;
  for (const auto& [when, index] : idle_) {
    Process& one = processes_[index];
    if (&one == spared) continue;
    if (victim == nullptr || held[one.lane] > held[victim->lane]) victim = &one;
  }
  return victim;
}

// A session has nothing to do: its lease begins.
void Supervisor::rest(Process& session) {
  session.state = Process::State::kIdle;
  session.last_used = Clock::now();
  idle_.emplace(session.last_used, session.index);
  session.weighed = false;
  ++unweighed_;
  set_deadline(session, session.last_used + std::chrono::microseconds(options_.lease_us));
}

// It has, or is gone.
void Supervisor::wake(Process& session) {
  idle_.erase({session.last_used, session.index});
  unweighed_ -= !session.weighed;
  session.weighed = true;
}

}  // namespace rocstar
