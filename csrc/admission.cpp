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
  std::deque<std::pair<uint64_t, Request>>* oldest = nullptr;
  for (size_t queue = 0; queue < pending_.size(); ++queue) {
    if (pending_[queue].empty()) continue;
    const bool of_session = queue == options_.flavours.size();
    if (!of_session && server_for(static_cast<uint8_t>(queue)) == nullptr) continue;
    if (oldest == nullptr || pending_[queue].front().first < oldest->front().first) oldest = &pending_[queue];
  }
  if (oldest == nullptr) return false;
  Request& next = oldest->front().second;
  if (next.type == FrameType::kCell || next.type == FrameType::kBranch) {
    const auto found = sessions_.find(next.session);
    if (found == sessions_.end() || processes_[found->second].state != Process::State::kIdle) {
      const bool lost = found == sessions_.end();
      append_failed(outbox_, next.id, lost ? Failure::kSessionLost : Failure::kFull,
                    lost ? "there is no such session" : "the session has a cell under way");
      oldest->pop_front();
      return true;
    }
    Process& session = processes_[found->second];
    session.last_used = Clock::now();  // the one that is wanted is not the one that makes room
    const uint64_t more = session.limits.memory_bytes - std::min(session.reserved_bytes, session.limits.memory_bytes);
    if (!make_room(more)) return false;
    Request request = std::move(next);
    oldest->pop_front();
    if (!sessions_.contains(request.session)) {
      append_failed(outbox_, request.id, Failure::kSessionLost, "the session was evicted");
    } else if (request.type == FrameType::kCell) {
      start_cell(std::move(request), session);
    } else {
      start_branch(std::move(request), session);
    }
    return true;
  }
  if (next.type == FrameType::kOpen && sessions_.size() >= options_.max_sessions) {
    Process* victim = least_recently_used();
    if (victim == nullptr) {
      append_failed(outbox_, next.id, Failure::kFull, "every session has a cell under way");
      oldest->pop_front();
      return true;
    }
    close_session(victim->number, GoneWhy::kEvicted);
  }
  if (!make_room(next.limits.memory_bytes)) return false;
  Request request = std::move(next);
  oldest->pop_front();
  Server& server = *server_for(request.flavour);
  order_child(std::move(request), server);
  return true;
}

bool Supervisor::make_room(uint64_t bytes) {
  while (reserved_bytes_ + bytes > options_.memory_bytes) {
    Process* victim = least_recently_used();
    if (victim == nullptr) return reserved_bytes_ == 0;  // a request larger than all there is runs alone
    reserved_bytes_ -= victim->reserved_bytes;
    victim->reserved_bytes = 0;
    close_session(victim->number, GoneWhy::kEvicted);
  }
  return true;
}

Supervisor::Process* Supervisor::least_recently_used() {
  Process* found = nullptr;
  for (const auto& [number, index] : sessions_) {
    Process& session = processes_[index];
    if (session.state != Process::State::kIdle) continue;
    if (found == nullptr || session.last_used < found->last_used) found = &session;
  }
  return found;
}

}  // namespace rocstar
