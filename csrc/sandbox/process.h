// The supervisor's records of a child and of a zygote.
#pragma once

#include <set>

#include "supervise.h"

namespace rocstar {

// What a group's processes have together, exactly. The kernel goes through all their pages for that, some 40 ns each,
// so it is asked about a few processes at a time.
struct Weighing {
  std::vector<pid_t> left;
  uint64_t bytes = 0;  // of those before

  // False while some are left for another time.
  bool go_on();
};

struct Supervisor::Process {
  enum class State : uint8_t {
    kFree,
    kStarting,  // ordered; nothing is known of it but the sockets
    kRunning,   // has a program or a cell
    kIdle,      // a session between cells
    kBranching  // a session that forks itself
  };
  State state = State::kFree;
  uint32_t index = 0;
  uint32_t generation = 0;  // of the index: events of an earlier owner are stale
  bool session = false;
  Role role = Role::kInterpreter;
  Server* server = nullptr;      // that was ordered to fork it, while starting
  Process* origin = nullptr;     // that forks it, while starting
  Process* offspring = nullptr;  // that it forks, while branching
  Request request;               // under way: the program, cell, opening or branching
  std::optional<uint64_t> seed;  // of the session
  pid_t family = -1;             // session id (setsid) of the process and all its branches
  uint64_t number = 0;           // of the session
  uint64_t lane = 0;             // whose it is
  uint32_t weight = 1;           // of the lane
  Limits limits;                 // of the program or session
  std::shared_ptr<Home> home;
  pid_t pid = -1;
  UniqueFd pidfd, control;
  Capture out, err;
  std::string word;          // the first bytes that it said since: of a session the head of its reply
  HeadTail value;            // its value without that head
  uint64_t value_bytes = 0;  // said, head included
  uint64_t shown[2] = {};    // of output and error, sent as it was written
  std::string to_send;       // down the control socket
  Text code_to_send;         // behind that: a long one, which is not copied
  size_t sent = 0;           // of both
  bool watching_control_writes = false;
  bool lines_rest = false;  // its output is not watched yet
  Clock::time_point rests_since;
  bool has_code = false;  // was sent its program before its birth
  bool branch_granted = false;
  uint32_t interrupts = 0;          // sent to the cell under way
  bool interrupted_before = false;  // the cell before it
  bool opening = false;             // a session that counts but cannot be used yet
  bool lost = false;                // a session whose end is not the pool's news any more
  const char* broken = nullptr;     // why it is no partner any more
  uint32_t flags = 0;
  uint64_t group_peak_bytes = 0, group_cpu_us = 0;  // of a bash program's processes together, as they were seen
  Weighing weighing;                                // of those, while it is under way
  uint64_t orphans_cpu_us = 0;                      // of processes that no process of the group waited for
  uint64_t kills_before = 0;                        // for want of memory, when its work began
  uint32_t tasks = 0;                               // of its group, where the kernel does not count them
  Clock::time_point tasks_counted;
  Clock::duration tasks_cost{};  // of counting them, in processor time
  uint64_t reserved_bytes = 0;
  bool weighed = true;         // else a session that has rested since its last cell, and counts as what that might take
  uint64_t weighed_at_us = 0;  // of its CPU time
  uint64_t cpu_limit_s = 0;    // as set in the kernel
  bool has_cpu_limit = true;   // until the kernel refuses
  uint64_t baseline_resident = 0;
  uint64_t cpu_us_before = 0;  // of the session, when its cell began or ended
  uint64_t suspected_us = 0;   // see rest_of
  Clock::time_point began;     // to have a place, its birth included
  Clock::time_point started, deadline = Clock::time_point::max(), last_used;
};

struct Supervisor::Server {
  uint32_t index = 0;
  uint8_t flavour = 0;
  pid_t pid = -1;
  UniqueFd socket, pidfd;
  bool ready = false;
  uint32_t deaths = 0;     // before it was ever ready, in a row
  std::string at;          // its last step before it was ready
  Clock::time_point late;  // not ready by then, it is taken to hang
  std::string death;       // how the last of them was, and how many were like it
  uint32_t same_deaths = 0;
  std::string unfit;        // why no other could be started, until one is
  Clock::time_point again;  // from then on the next call starts another
  uint32_t generation = 0;
  uint64_t baseline_resident = 0;
  std::set<uint32_t> orders;  // processes that are starting
};

// Of one program of Python or C++: 64, the first one, and the three that serve a pool of multiprocessing's. Counted by
// the kernel where each has a user of its own, else by the supervisor, who is asked.
inline constexpr uint32_t kMostThreads = 64 + 1 + 3;
// Threads and processes of a bash program.
inline constexpr uint32_t kMostTasks = 64;
// Orders one zygote may have at a time: enough to be never idle, few enough to be redone quickly.
inline constexpr size_t kMostOrders = 16;
// A zygote that dies so often before it was ready is not tried again; in the same way, by nobody's SIGKILL, sooner:
// what it imports may take a minute each time.
inline constexpr uint32_t kMostDeaths = 3, kMostSameDeaths = 2;
// One that could be started once and cannot be any more is tried again no sooner.
inline constexpr std::chrono::seconds kUnfitRest{1};
// A zygote that lets a child wait this long to be born is taken to hang, and killed: its orders go to the next.
inline constexpr std::chrono::seconds kBirthGrace{20};
// A child that ended before its birth is given again after this, if its zygote's end has not done so before.
inline constexpr std::chrono::milliseconds kOrphanGrace{200};
// A program or cell is this old before somebody looks at what it writes: most have ended by then. Who fills a pipe
// sooner waits. A session rests as long before its lines are watched: most often its next cell comes sooner.
inline constexpr std::chrono::milliseconds kYoung{5};
// So much is sent at a time, to the pool and to a child: one that reads as fast as that would keep all others waiting.
inline constexpr size_t kMostSent = 1 << 20;
// A program of at most so many bytes, which a socket holds, is sent before its child is born.
inline constexpr size_t kSentAhead = 64 << 10;
// A branch takes no longer than this, or its origin is no partner any more.
inline constexpr std::chrono::seconds kBranchGrace{5};
// An idle session may use this much CPU time, for what its cells have left running, and is looked at this often.
inline constexpr uint64_t kIdleCpuUs = 500'000;
inline constexpr std::chrono::seconds kSessionsLook{1};
// One that has used more is looked at again soon, and is done with when it has used this much since.
inline constexpr uint64_t kRestlessCpuUs = 10'000;
inline constexpr std::chrono::milliseconds kRestlessLook{100};
// A larger difference between two measurements is growth; smaller ones are collectors or buffers.
inline constexpr uint64_t kIdleGrowth = 1 << 20;
// How often to look how full the scratch directories are, while somebody who has files there is at work, and how long
// to wait after taking one of them away.
inline constexpr std::chrono::milliseconds kScratchLook{10};
// At so many entries of scratch directories in one look: some milliseconds, however many files programs make.
inline constexpr uint64_t kEntriesALook = 2048;
inline constexpr std::chrono::milliseconds kScratchAgain{100};
// The interval of checks for the end of an unknown process, while one is expected.
inline constexpr std::chrono::milliseconds kStrangersLook{50};
// A victim of the kernel may take so long to give its memory back, and to be gone.
inline constexpr std::chrono::seconds kVictimEnds{10};
// The rounds of events that are handled before deadlines are checked.
inline constexpr uint32_t kMostFullRounds = 64;
// The interval at which the memory of a bash program's processes is measured.
inline constexpr std::chrono::milliseconds kGroupWatch{20};
// After a look, nobody is looked at for so many times the processor time that it took: programs with many processes
// would take the supervisor from all others. The same of a count of tasks that forbids more.
inline constexpr int kGroupRest = 4;
// For so long, in processor time, and one process more, a group is weighed at a time.
inline constexpr std::chrono::milliseconds kWeighing{3};
// How long a count of its tasks holds, and one that forbids more.
inline constexpr std::chrono::milliseconds kRecountTasks{5}, kRecountFull{1};
// How often to look whether a killed group's parts are gone.
inline constexpr std::chrono::milliseconds kGroupLook{2};
// A session whose cell is interrupted has this long to answer before it is killed.
inline constexpr std::chrono::milliseconds kInterruptGrace{300};
// After one that was interrupted, a cell may take its own first interrupt for that one's: it is asked twice.
inline constexpr std::chrono::milliseconds kInterruptAgain{50};

[[noreturn]] void fail(const char* what);
// Its standard input, beforehand.
void write_input(Request& request);
// Microseconds of CPU time that a process has used, all its threads together; 0 when it is not there.
uint64_t cpu_us_of(pid_t pid);
// Those that /proc shows; none where it does not.
std::vector<pid_t> own_children();
// What an idle session's CPU time says of it, and what it had when it was first suspected: 0 before that. Once is no
// proof: a machine that stood still charges whoever was on it for the pause.
enum class Rest : uint8_t { kCalm, kSuspected, kWorking };
Rest rest_of(uint64_t used_us, uint64_t before_us, uint64_t& suspected_us);
std::vector<pid_t> threads_of(pid_t pid);
// The process that a thread belongs to, or -1 if unknown.
pid_t process_id_of(pid_t thread);

// What the processes of a group have together, as far as /proc shows it; who starts and ends meanwhile may be missed.
struct GroupUse {
  std::vector<pid_t> members;
  uint64_t cpu_us = 0;
  uint64_t bytes = 0;  // perhaps too much: what several share counts for each
  uint32_t tasks = 0;  // threads of all processes
};
GroupUse use_of_group(pid_t group);
// The memory of a session, except changed pages of the zygote.
uint64_t held_bytes_of(pid_t pid, uint64_t baseline_resident);
// What its pipes and sockets may hold besides, by their number: memory of the kernel's, which counts for no process.
uint64_t line_bytes_of(pid_t pid);

inline constexpr uint32_t kStopped =
    Outcome::kTimedOut | Outcome::kOutputLimit | Outcome::kCancelled | Outcome::kNoScratch;

inline uint64_t hard_cap(const Limits& limits) {
  return kHardOutputFactor * (limits.output_bytes < kSmallestOutputCap ? kSmallestOutputCap : limits.output_bytes);
}

}  // namespace rocstar
