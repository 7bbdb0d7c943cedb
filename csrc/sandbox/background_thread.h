// Runs long jobs in a thread: assembling large results, writing large inputs, and freeing much memory, each of which
// would block the supervisor's loop.
//
//   loop --take--> lanes, round-robin --> [ thread: Job::run ] --fd() is readable--> finish: then
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

// The size from which a result or an input is handled in the thread: the first access to a page takes the kernel up to
// 4 us, and each page is copied more than once.
inline constexpr size_t kLong = 1 << 20;

// Work for the thread. Invariant: `run` accesses only members of the job. jobs.h has the supervisor's jobs.
class Job {
 public:
  Job() = default;
  Job(const Job&) = delete;
  virtual ~Job() = default;
  virtual void run() = 0;
};

// Invariants: one job at a time; the jobs of a lane run in order, and lanes alternate; each `then` runs once in the
// loop, after its job's `run`, in the same order. The destructor drops jobs that have not started.
class BackgroundThread {
 public:
  // Throws std::system_error when there are no descriptors.
  BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  ~BackgroundThread();

  // Runs the job immediately if no thread can be started.
  void take(uint64_t lane, std::shared_ptr<Job> job, std::function<void()> then);
  // Readable from the end of a task until `finish`.
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
