#include "background_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace rocstar {

BackgroundThread::BackgroundThread() : done_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!done_fd_) throw std::system_error(errno, std::generic_category(), "eventfd");
}

BackgroundThread::~BackgroundThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundThread::take(uint64_t lane, std::shared_ptr<Job> job, std::function<void()> then) {
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    job->run();
    return then();
  }
  {
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(waiting_.begin(), waiting_.end(), [lane](const auto& one) { return one.first == lane; });
    if (found == waiting_.end()) found = waiting_.insert(found, {lane, {}});
    found->second.push_back({std::move(job), std::move(then)});
  }
  changed_.notify_all();
}

void BackgroundThread::finish() {
  uint64_t count = 0;
  if (read(done_fd_.get(), &count, sizeof count) != sizeof count) return;  // nothing is done
  std::deque<Task> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (const Task& task : done) task.then();
}

BackgroundThread::Task BackgroundThread::next() {
  auto [lane, tasks] = std::move(waiting_.front());
  waiting_.pop_front();
  Task task = std::move(tasks.front());
  tasks.pop_front();
  if (!tasks.empty()) waiting_.emplace_back(lane, std::move(tasks));
  return task;
}

void BackgroundThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    Task task = next();
    lock.unlock();
    task.job->run();
    lock.lock();
    done_.push_back(std::move(task));
    const uint64_t one = 1;
    if (write(done_fd_.get(), &one, sizeof one) < 0) continue;  // it counts to 2^64
  }
}

}  // namespace rocstar
