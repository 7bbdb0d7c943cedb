// What may start when. A program under way counts with all the memory it may take, an idle session with what it
// holds, so that the sum stays below the machine's; idle sessions give way. Lanes (a batch, an owner) share the places.
#include <algorithm>
#include <optional>

#include "process.h"

namespace rocstar {

void Supervisor::start_pending() {
  while (under_way_ < options_.max_live && start_next()) {
  }
}

// Of those whose zygote or session can take them, the oldest of the lane that has least under way. One that waits for
// memory holds back all later ones, or small programs would keep a large one waiting for ever; but not a small one of
// a lane that has nothing: an eighth of the memory is spare for those.
bool Supervisor::start_next() {
  using Rank = std::pair<uint32_t, uint64_t>;
  struct Place {
    Rank rank;
    Queue* queue;
    Queue::iterator item;
  };
  std::optional<Place> next, spare;
  for (Queue& waiting : pending_) {
    for (auto item = waiting.begin(); item != waiting.end(); ++item) {
      const auto& [arrival, request] = *item;
      const uint32_t work = arrival == 0 ? 0 : work_of(lane_of(request));  // 0: it had its turn before
      const Rank rank{work, arrival};
      const bool better = !next || rank < next->rank;
      const bool for_spare = work == 0 && (!spare || rank < spare->rank) && fits_in_spare(request);
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
  Request request = std::move(next->item->second);
  const bool cell = next->queue == &pending_.back();
  next->queue->erase(next->item);
  if (cell) {
    start_in_session(std::move(request));
  } else {
    Server& server = *server_for(request.flavour);
    order_child(std::move(request), server);
  }
  return true;
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

uint32_t Supervisor::work_of(uint64_t lane) const {
  const auto found = working_.find(lane);
  return found == working_.end() ? 0 : found->second;
}

void Supervisor::begin_work(const Process& process) {
  ++under_way_;
  ++working_[process.lane];
}

void Supervisor::end_work(const Process& process) {
  --under_way_;
  const auto found = working_.find(process.lane);
  if (found != working_.end() && --found->second == 0) working_.erase(found);
}

// A session's cells are of its lane.
uint64_t Supervisor::lane_of(const Request& request) const {
  const auto found = request.session == 0 ? sessions_.end() : sessions_.find(request.session);
  return found == sessions_.end() ? request.lane : processes_[found->second].lane;
}

uint64_t Supervisor::bytes_to_start(const Request& request) const {
  if (request.type == FrameType::kRun || request.type == FrameType::kOpen) return memory_needed(request);
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) return 0;
  const Process& session = processes_[found->second];
  if (request.type == FrameType::kBranch) return session.limits.memory_bytes;
  return session.limits.memory_bytes - std::min(session.reserved_bytes, session.limits.memory_bytes);
}

bool Supervisor::fits_in_spare(const Request& request) const {
  const uint64_t spare = options_.memory_bytes / 8, bytes = bytes_to_start(request);
  return bytes <= spare && reserved_bytes_ + bytes <= options_.memory_bytes + spare;
}

void Supervisor::start_in_session(Request request) {
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) {
    append_failed(outbox_, request.id, Failure::kSessionLost, "there is no such session");
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
    if (Process* victim = least_recently_used(nullptr)) close_session(victim->number, GoneWhy::kEvicted);
  }
  return make_room(memory_needed(request), nullptr);
}

bool Supervisor::make_room(uint64_t bytes, const Process* spared) {
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

Supervisor::Process* Supervisor::least_recently_used(const Process* spared) {
  for (const auto& [when, index] : idle_) {
    if (&processes_[index] != spared) return &processes_[index];
  }
  return nullptr;
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
  set_deadline(session, session.last_used + std::chrono::microseconds(options_.lease_us));
}

// It has, or is gone.
void Supervisor::wake(Process& session) { idle_.erase({session.last_used, session.index}); }

}  // namespace rocstar
