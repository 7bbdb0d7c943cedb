// What may start when. A program under way counts with all the memory it may take, an idle session with what it
// holds, so that the sum stays below the machine's; idle sessions give way, the least recently used first.
#include <algorithm>

#include "process.h"

namespace rocstar {

void Supervisor::start_pending() {
  while (under_way_ < options_.max_live && start_oldest()) {
  }
}

// The oldest request whose zygote or session can take it. One that waits for memory holds back all later ones:
// otherwise small programs would keep a large one waiting for ever.
bool Supervisor::start_oldest() {
  Queue* queue = nullptr;
  Queue::iterator oldest;
  for (size_t flavour = 0; flavour < options_.flavours.size(); ++flavour) {
    Queue& waiting = pending_[flavour];
    if (waiting.empty() || server_for(static_cast<uint8_t>(flavour)) == nullptr) continue;
    const auto first = std::find_if(waiting.begin(), waiting.end(), [this](const auto& item) {
      return item.second.type != FrameType::kOpen || may_open();
    });
    if (first == waiting.end() || (queue != nullptr && oldest->first <= first->first)) continue;
    queue = &waiting;
    oldest = first;
  }
  Queue& of_sessions = pending_.back();
  const auto cell = std::find_if(of_sessions.begin(), of_sessions.end(), [this](const auto& item) {
    const auto found = sessions_.find(item.second.session);
    if (found == sessions_.end()) return true;
    const Process& session = processes_[found->second];
    return session.state == Process::State::kIdle && session.offspring == nullptr;
  });
  if (cell != of_sessions.end() && (queue == nullptr || cell->first < oldest->first)) {
    queue = &of_sessions;
    oldest = cell;
  }
  if (queue == nullptr) return false;
  const Request& next = oldest->second;
  const bool of_session = queue == &of_sessions;
  if (!(of_session ? has_room_for_cell(next) : has_room_for_child(next))) return false;
  Request request = std::move(oldest->second);
  queue->erase(oldest);
  if (of_session) {
    start_in_session(std::move(request));
  } else {
    Server& server = *server_for(request.flavour);
    order_child(std::move(request), server);
  }
  return true;
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
  Process& session = processes_[found->second];
  const uint64_t more = session.limits.memory_bytes - std::min(session.reserved_bytes, session.limits.memory_bytes);
  return make_room(request.type == FrameType::kBranch ? session.limits.memory_bytes : more, &session);
}

bool Supervisor::has_room_for_child(const Request& request) {
  if (request.type == FrameType::kOpen && sessions_.size() + opening_ >= options_.max_sessions) {
    if (Process* victim = least_recently_used(nullptr)) close_session(victim->number, GoneWhy::kEvicted);
  }
  return make_room(memory_needed(request), nullptr);
}

bool Supervisor::make_room(uint64_t bytes, const Process* spared) {
  while (reserved_bytes_ + bytes > options_.memory_bytes) {
    Process* victim = least_recently_used(spared);
    if (victim == nullptr) return under_way_ == 0;  // nothing is left to wait for: it runs with what there is
    reserved_bytes_ -= victim->reserved_bytes;
    victim->reserved_bytes = 0;
    close_session(victim->number, GoneWhy::kEvicted);
  }
  return true;
}

// A session that finds no place and nobody idle waits, and others pass it.
bool Supervisor::may_open() { return sessions_.size() + opening_ < options_.max_sessions || !idle_.empty(); }

Supervisor::Process* Supervisor::least_recently_used(const Process* spared) {
  for (const auto& [when, index] : idle_) {
    if (&processes_[index] != spared) return &processes_[index];
  }
  return nullptr;
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
