// Every object of the supervisor that a second thread can reach. All else belongs to the loop alone.
//
//   Worker's thread    the Job that it runs, one of those below; Worker's queues, under its mutex
//   Sweeper's thread   the Leftover that it removes (sweeper.h); Sweeper's queues, under its mutex
//
// A job has what it needs by value. Texts are shared by reference count and never changed. The loop takes a job back
// in the task's `then`, which runs after `run` has returned.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "capture.h"
#include "protocol.h"
#include "worker.h"

namespace rocstar {

// All that a result is made of. Invariant: nothing in it refers to an object of the supervisor. `directory` is a
// descriptor: whoever makes the result keeps the home that owns it until the result is made.
struct ResultParts {
  Outcome outcome;
  Limits limits;
  HeadTail out, err, value;
  int directory;
  uint64_t most_file_bytes;  // 0 where no file was made or none is asked for
  std::string fetch;
  bool displays;

  bool is_long() const { return out.held() + err.held() + value.held() + most_file_bytes >= kLong; }
  // Appends its frames: files first, as their reader wants them. Empties the texts.
  void append_to(std::string& to);
};

// Makes the frames of a long result.
class ResultJob : public Job {
 public:
  explicit ResultJob(ResultParts parts) : parts_(std::move(parts)) {}
  void run() override { parts_.append_to(frames); }

  std::string frames;

 private:
  ResultParts parts_;
};

// Writes a long input into a file of its own.
class InputJob : public Job {
 public:
  explicit InputJob(Request call) : request(std::move(call)) {}
  void run() override;

  Request request;
};

// Gives memory back, which takes the kernel long.
template <typename Memory>
class FreeJob : public Job {
 public:
  explicit FreeJob(Memory memory) : memory_(std::move(memory)) {}
  void run() override { memory_ = Memory(); }

 private:
  Memory memory_;
};

}  // namespace rocstar
