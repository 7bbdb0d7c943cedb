// Theory of operation
//
//   pool (Python, asyncio)            in the trainer or the service; one supervisor each
//     |  stream socket, both ways: frames of protocol.h
//   supervisor (this loop)            a process of its own, C++, epoll; parent of all below; confined by guard.h
//     :  packet socket: orders to start a zygote, as the supervisor's own child (CLONE_PARENT)
//   starter                           starts programs for the supervisor, which cannot (starter.h)
//     |  packet socket each, to the supervisor: orders to fork, link.h
//   zygotes                           warm Python interpreters, one or more per flavour
//     :  fork, as the supervisor's own children (CLONE_PARENT)
//   children                          one program each, or one session of many cells; confined by child.cpp
//     |  fork and exec, of a C++ program's compiler (compile.cpp) and of bash programs alone (process_groups.cpp)
//   descendants                       in their child's process group, and killed with it
//
// Between supervisor and child:
//   0 stdin     a sealed memfd, or /dev/null when there is no input
//   1, 2        pipes for stdout and stderr; head and tail of each are kept up to output_bytes
//   3 control   a socket: down go the program or the cells, up come 'R' once it is confined, then the value of a
//               trailing expression (a session: one reply per cell)
//   pidfd       held by the supervisor: readable when the child has ended, and what SIGKILL is sent through
//   listener    per zygote: requests of the kernel about its children (seccomp_notify.h)
//
// A call: RUN frame -> queue -> order to a zygote with the child's ends, and the program down the control socket, which
// the child reads once it is confined and has said 'R' -> pidfd readable -> one last read of the pipes -> RESULT frame.
// A program ends when its pidfd is readable, a cell when its session answers. The status of a program comes from waitid
// and from the actions of this loop, never from data that the child wrote. The status of a cell is the session's claim;
// its time is measured here.
//
// Waking up costs more than most work that follows, so a print wakes this loop twice, by its 'R' and by its end: the
// pipes of a new program are not watched (watched_fds.cpp), and its result may wait for others (outbox.h).
//
// Long work that decides nothing runs in threads: long results and inputs (background_thread.h), and the removal of
// leftovers (sweeper.h). Only the loop accesses processes, lanes and sessions; jobs.h lists the shared objects.
//
// Waiting: the pool waits for one RESULT, OPENED or FAILED frame per request; the supervisor waits in epoll, at most
// until the next deadline; a zygote waits for orders; a child with a program waits for no other process.
//
// Deaths: pool gone -> the socket closes, the supervisor kills and reaps everything and removes what was written.
// Supervisor gone -> starter, zygotes and children get SIGKILL (PR_SET_PDEATHSIG). Starter gone -> the supervisor ends
// when it next needs a zygote, and the pool starts another. Zygote gone -> unanswered orders go to its replacement;
// children and sessions continue, because they are the supervisor's children. If no replacement can start, because its
// imports are gone, the flavour's calls fail until one can.
#pragma once

#include <chrono>
#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "background_thread.h"
#include "capture.h"
#include "cgroup.h"
#include "home.h"
#include "jobs.h"
#include "link.h"
#include "outbox.h"
#include "protocol.h"
#include "seccomp_notify.h"
#include "starter.h"

namespace rocstar {

struct SupervisorOptions {
  int client_fd = -1;
  std::vector<std::string> zygote_command;  // a flavour's name and `--fd N` are appended
  std::string preload;                      // a library that zygotes load before all others (places.cpp); empty: none
  std::vector<std::string> flavours;
  uint32_t replicas = 1;                   // zygotes per flavour
  int proc = -1;                           // the machine's /proc, which may be read-only by then: see Starter
  std::string zygote_directory;            // where they work while they start; its parent is removed at the end
  uint32_t max_live = 3;                   // programs and cells under way at a time
  uint32_t max_sessions = 0;               // interpreters that live between cells
  uint64_t memory_bytes = 0;               // what all calls under way may take, and idle sessions hold, together
  uint64_t lease_us = 0;                   // an idle session's life
  uint64_t zygote_start_us = 120'000'000;  // a replacement that takes longer is taken to hang
  HomeOptions home;
  std::shared_ptr<Cgroup> cgroup;         // around everything, where there is one
  std::shared_ptr<UniqueFd> users;        // a locked file: no other pool has these slots' users; null: shared
  uint64_t compile_wall_us = 20'000'000;  // of the C++ flavour
  int32_t nice = 0;                       // of programs, above our own
  std::string hello_json;                 // sent to the pool once every zygote is ready, or at once
  bool warm_before = false;  // the pool had all flavours of another supervisor: this one takes calls at once
};

// Invariants: every request gets exactly one RESULT, OPENED or FAILED frame, while the pool lives; at most `max_live`
// programs, cells and long results are under way at a time, and an eighth more, at least one, of owners that have
// nothing else under way; what they may take together is at most `memory_bytes`, and an eighth more for lanes that have
// nothing under way; of two lanes that wait, the one with less under way for its weight is next, and of equals the one
// that had less of the places' time, compilations included; at most `max_sessions` interpreters live between cells or
// are about to; no child outlives `run`; a session is gone exactly when its GONE frame was sent.
class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options);
  ~Supervisor();

  // Returns when the pool is gone. Throws ProtocolError or std::system_error, after killing all children.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Process;
  struct Server;
  // Under way for its weight, the places' time it had for its weight, order of arrival: the least is next.
  using Rank = std::tuple<double, double, uint64_t>;
  struct Lane {
    uint32_t waiting = 0;
    uint32_t under_way = 0;
    uint32_t weight = 1;
    double had_s = 0;  // counted from what the one that was next then had when this one came
  };
  using Queue = std::deque<std::pair<uint64_t, Request>>;  // with the order of arrival
  // Of a lane, in one place.
  struct Turn {
    uint64_t lane;
    Clock::time_point began;
  };
  // Whose lines rest, unless they rest anew since.
  struct Young {
    Clock::time_point since;
    uint32_t index;
    uint32_t generation;
  };
  enum class Source : uint8_t { kClient, kZygote, kZygoteEnd, kListener, kControl, kOut, kErr, kPidfd, kWorker };

  // supervise.cpp: the loop and the pool's side
  void loop();
  void handle(uint64_t tag, uint32_t events);
  void watch(int fd, Source source, uint32_t index, uint32_t generation, uint32_t events);
  void read_client();
  void handle_frame(const Frame& frame);
  void take_request(Request request);
  void cancel(uint64_t id);
  void close_session(uint64_t session, GoneWhy why, std::string_view how = {});
  void flush_client();
  void set_deadline(Process& process, Clock::time_point when);
  void expire(Clock::time_point now);
  int next_timeout_ms() const;

  // watched_fds.cpp: which pipes and sockets of children are watched
  void watch_lines(Process& process);
  void rest_lines(Process& process);
  void rest_longer(Process& process, Clock::time_point now);
  void watch_slow();

  // zygotes.cpp: the fork servers
  void start_zygote(Server& server);
  void read_zygote(Server& server);
  void zygote_ended(Server& server);
  void say_hello();
  bool may_be_late(const Server& server) const;
  void end_late_zygotes(Clock::time_point now);
  void died_early(Server& server, const siginfo_t& info);
  void cannot_be(Server& server, std::string_view why);
  void rest_unfit(Server& server);
  void try_unfit(uint8_t flavour);
  void fail_unserved(uint8_t flavour);
  void take_hello(Server& server, std::string_view rest);
  void read_listener(uint32_t index, uint32_t events);
  int judge(const Question& question);
  Process* process_of_thread(pid_t thread);
  Server* server_for(uint8_t flavour);

  // admission.cpp: what may start when
  void start_pending();
  bool start_next();
  bool may_start(const Request& request);
  bool may_have_spare_place(const Rank& rank, const Request& request) const;
  void enqueue(uint64_t arrival, Request request);
  Request dequeue(Queue& queue, Queue::iterator item);
  void forget_lane(uint64_t number);
  Rank rank_of(uint64_t arrival, const Request& request) const;
  void begin_work(Process& process);
  void end_work(const Process& process);
  Turn begin_turn(uint64_t lane);
  void end_turn(const Turn& turn);
  uint64_t bytes_to_start(const Request& request) const;
  void start_in_session(Request request);
  bool has_room_for_cell(const Request& request);
  bool has_room_for_child(const Request& request);
  bool fits_in_spare(const Request& request);
  bool make_room(uint64_t bytes, const Process* spared);
  Process* heaviest_idle(const Process* spared);
  Process* most_numerous_idle(const Process* spared);
  bool starve(Request& request, int error);
  void evict(Process& session);
  bool may_open();
  void rest(Process& session);
  void wake(Process& session);

  // launch.cpp: how programs, sessions, cells and branches begin
  void order_child(Request request, Server& server);
  Process& new_process(Request request, std::shared_ptr<Home> home);
  void start_cell(Request request, Process& session);
  void start_branch(Request request, Process& origin);
  void give_again(Process& process);
  void forestall_birth(Process& process);
  void take_births();
  bool is_unknown_child(pid_t pid) const;
  void watch_birth(Process& process);
  void take_birth(Process& process);
  void announce_session(Process& process);
  void end_opening(Process& process);
  void start_failed(Process& process, const std::string& why);
  void send_cell(Process& process);
  void drop_texts(Process& process);
  void flush_control(Process& process);

  // processes.cpp: how they answer and end
  void read_control(Process& process);
  void take_value(Process& process, std::string_view bytes);
  static void forget_value(Process& process);
  void take_replies(Process& process);
  void drain(Process& process, Capture& stream);
  void take_output(Process& process, Capture& stream);
  void show_output(Process& process, const Capture& stream, std::string_view bytes);
  void kill(Process& process, Outcome::Flag why);
  void break_with(Process& session, const char* why);
  std::string ending_of(const Process& session, bool exited, int code) const;
  void interrupt(Process& process, Outcome::Flag why);
  void stop(Process& process, Outcome::Flag why);
  void reap(Process& process);
  void expect_strangers();
  void kill_strays();
  void look_at_sessions();
  void weigh_sessions();
  void weigh_scratch();
  void weigh_homes();
  void look_at_scratch();
  void make_scratch_room(uint64_t held, uint64_t wanted);
  std::optional<uint64_t> scratch_taken();
  bool looks_at_scratch() const { return homes_.used() > 0 && under_way_ > 0; }
  void count_held(Process& session);
  void weigh_idle();
  bool looks_at_sessions() const { return !sessions_.empty() || !grants_.empty(); }
  void reap_strangers();
  void finish_cell(Process& session, const CellReply& reply);
  bool was_killed_for_memory(const Process& process, const Outcome& outcome);
  bool may_be_victim(const Process& process);
  uint64_t look_for_victims();
  void abandon(Process& process);
  void forget(Process& process);
  static void set_cpu_limit(Process& session, uint64_t used_us, bool idle);
  void kill_all();

  // results.cpp: how results are put together
  void report(Process& process, Outcome outcome);
  void answer_beside(const Process& process, ResultParts parts);
  std::string& frames_of(uint64_t session);
  template <typename Memory>
  void free_beside(Memory memory);

  // compile.cpp: C++ programs, each in two children
  bool is_cpp(uint8_t flavour) const;
  Role role_of(const Request& request) const;
  uint64_t memory_needed(const Request& request) const;
  Rlimits compiler_rlimits(const Request& request) const;
  uint64_t output_cap(const Process& process) const;
  void end_compilation(Process& process, bool exited, int code);
  bool could_not_start(Process& process);

  // process_groups.cpp: children that start other programs
  bool is_shell(uint8_t flavour) const;
  static uint64_t most_creations(const Process& process);
  std::vector<pid_t> holders_of(const Process& process);
  void look_at_groups();
  void look_at_group(Process& process);
  void look_at_time_of(Process& process);
  bool looks_at_groups() const { return has_shell_ && under_way_ > 0; }
  bool may_have_task(Process& process);
  int signal_for(const Process& process, const Question& question);
  bool lost_a_part(const Process& process, const Outcome& outcome);
  void kill_group(const Process& process);
  void expect_end_of_group(Process& process);
  void look_for_ended_groups();

  SupervisorOptions options_;
  UniqueFd client_;
  Starter starter_;
  UniqueFd epoll_;
  Homes homes_;
  FrameReader reader_;
  Outbox outbox_;
  std::map<uint64_t, std::string> behind_;  // by session, that has a result in the making: what comes after it
  std::set<uint64_t> arriving_;             // calls whose input is being written
  uint64_t leaving_bytes_ = 0;              // in scratch directories of programs that ended, until their files are read
  bool awaits_space_ = false;               // programs wait until removed files have left the scratch directories
  BackgroundThread incoming_;               // writes inputs, and frees memory
  BackgroundThread outgoing_;               // makes results
  bool client_open_ = true;
  bool watching_writes_ = false;
  bool said_hello_ = false;
  uint32_t unfit_ = 0;  // servers without a zygote
  std::vector<std::unique_ptr<Server>> servers_;
  std::map<uint32_t, UniqueFd> listeners_;  // one per zygote that ever was, while it has children
  uint32_t next_listener_ = 0;
  std::vector<Queue> pending_;  // by flavour, that of cells and branches last
  uint64_t arrivals_ = 1;
  std::deque<Process> processes_;  // by index; addresses stay
  std::vector<uint32_t> free_;
  std::unordered_map<uint64_t, uint32_t> sessions_;  // by number
  std::unordered_map<pid_t, uint32_t> by_pid_;
  std::set<pid_t> tied_;                                        // unborn branches that will die with us
  std::map<pid_t, uint32_t> grants_;                            // leaves to fork of which nobody is born, by family
  std::set<std::pair<Clock::time_point, uint32_t>> idle_;       // sessions by last use, by index
  std::set<std::pair<Clock::time_point, uint32_t>> deadlines_;  // of processes, by index
  std::deque<Young> young_;                                     // in the order of their beginnings
  uint32_t unweighed_ = 0;                                      // idle sessions
  uint32_t under_way_ = 0;
  std::unordered_map<uint64_t, Lane> lanes_;  // that have something waiting or under way
  double had_s_ = 0;                          // by the lane that was next last
  uint32_t opening_ = 0;
  uint64_t reserved_bytes_ = 0;
  uint64_t victims_ = 0;  // of the kernel in the cgroup, as last seen
  Clock::time_point victim_seen_;
  Clock::time_point next_scratch_look_;
  size_t last_weighed_ = 0;      // of idle sessions: whose scratch directory, by index
  bool starved_ = false;         // of descriptors, until somebody has ended
  Clock::time_point next_look_;  // at what sessions do that they should not
  std::vector<std::pair<pid_t, std::shared_ptr<Home>>> ending_groups_;  // killed, and perhaps not gone yet
  bool has_shell_ = false;                                              // among the flavours
  Clock::time_point next_group_watch_;
  uint32_t last_group_ = 0;            // that was looked at, by index
  Clock::time_point strangers_until_;  // until then children may end that nobody knows
  uint32_t full_rounds_ = 0;           // in a row, of events
};

}  // namespace rocstar
