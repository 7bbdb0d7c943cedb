// Does what takes long and needs nobody's answer, in a thread of its own: large results are put together there, large
// inputs written, and much memory given back, each of which would keep the supervisor from all others.
//
//   loop --take--> lanes, in turns --> [ worker's thread: Job::run ] --fd() is readable--> finish: then
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "unique_fd.h"

namespace rocstar {

// From so many bytes on, a result or an input is not for the supervisor's loop: a page that is touched first takes the
// kernel up to 4 us, and is copied more than once.
inline constexpr size_t kLong = 1 << 20;

// Work for the thread. Invariant: `run` reaches members of the job and nothing else; jobs.h has the supervisor's jobs.
class Job {
 public:
  Job() = default;
  Job(const Job&) = delete;
  virtual ~Job() = default;
  virtual void run() = 0;
};

// Invariants: one job at a time; of a lane in the order in which they were taken, and of lanes that wait each has one
// before any has its next; each `then` once, after its job's `run`, in the same order, in the loop. What has not begun
// when this is gone is dropped.
class Worker {
 public:
  // Throws std::system_error when there are no descriptors.
  Worker();
  Worker(const Worker&) = delete;
  ~Worker();

  // Where no thread can be had, all is done at once.
  void take(uint64_t lane, std::shared_ptr<Job> job, std::function<void()> then);
  // Tasks are done. Readable until `finish`.
  int fd() const { return done_fd_.get(); }
  void finish();

 private:
  struct Task {
    std::shared_ptr<Job> job;
    std::function<void()> then;
  };

  void work();
  Task next();

  UniqueFd done_fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, std::deque<Task>>> waiting_;  // by lane, none of them empty; the next one first
  std::deque<Task> done_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace rocstar
