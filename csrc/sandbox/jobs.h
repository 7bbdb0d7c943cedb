// All objects of the supervisor that a second thread can access. Everything else belongs to the loop.
//
//   BackgroundThread   the Job that it runs, one of those below; its queues, under its mutex
//   Sweeper's thread   the Leftover that it removes (sweeper.h); Sweeper's queues, under its mutex
//
// A job has its data by value. Texts are shared by reference count and never changed. The loop takes a job back
// in the task's `then`, which runs after `run` has returned.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "background_thread.h"
#include "capture.h"
#include "protocol.h"

namespace rocstar {

// The parts of a result. Invariant: it does not refer to objects of the supervisor. `directory` is a descriptor: its
// home must exist until the result is made.
struct ResultParts {
  Outcome outcome;
  Limits limits;
  HeadTail out, err, value;
  int directory;
  uint64_t most_file_bytes;  // 0 if no file was created or fetched
  std::string fetch;
  bool displays;

  bool is_long() const { return out.held() + err.held() + value.held() + most_file_bytes >= kLong; }
  // Appends its frames, files first, as the reader expects. Empties the texts.
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

// Writes a long input into a file.
class InputJob : public Job {
 public:
  explicit InputJob(Request call) : request(std::move(call)) {}
  void run() override;

  Request request;
};

// Frees memory, which takes the kernel long.
template <typename Memory>
class FreeJob : public Job {
 public:
  explicit FreeJob(Memory memory) : memory_(std::move(memory)) {}
  void run() override { memory_ = Memory(); }

 private:
  Memory memory_;
};

}  // namespace rocstar
