#include "background_thread.h"

#include <poll.h>

#include <functional>
#include <latch>
#include <memory>
#include <string>

#include "check.h"

using rocstar::BackgroundThread;

namespace {

class Act : public rocstar::Job {
 public:
  explicit Act(std::function<void()> act) : act_(std::move(act)) {}
  void run() override { act_(); }

 private:
  std::function<void()> act_;
};

std::shared_ptr<Act> act(std::function<void()> what) { return std::make_shared<Act>(std::move(what)); }

void wait_for(const BackgroundThread& worker) {
  pollfd waiting{worker.fd(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 100'000) == 1);
}

void who_gives_it_something_goes_on_meanwhile() {
  BackgroundThread worker;
  std::latch gate(1);
  std::string told;
  worker.take(1, act([&gate] { gate.wait(); }), [&told] { told += '1'; });
  worker.take(1, act([] {}), [&told] { told += '2'; });
  worker.finish();
  CHECK(told.empty());
  gate.count_down();
  while (told.size() < 2) {
    wait_for(worker);
    worker.finish();
  }
  CHECK(told == "12");
  worker.finish();
  CHECK(told == "12");
}

void a_lane_with_much_leaves_others_their_turn() {
  BackgroundThread worker;
  std::latch begun(1), gate(1);
  std::string told;
  worker.take(1, act([&] {
                begun.count_down();
                gate.wait();
              }),
              [] {});
  begun.wait();
  for (const char* one = "aaaa"; *one != 0; ++one) worker.take(1, act([] {}), [&told] { told += 'a'; });
  worker.take(2, act([] {}), [&told] { told += 'b'; });
  worker.take(2, act([] {}), [&told] { told += 'b'; });
  worker.take(3, act([] {}), [&told] { told += 'c'; });
  gate.count_down();
  while (told.size() < 7) {
    wait_for(worker);
    worker.finish();
  }
  CHECK(told == "abcabaa");
}

void what_has_not_begun_is_dropped_with_it() {
  std::latch begun(1), gate(1);
  const auto held = std::make_shared<int>(0);
  bool did_first = false, did_second = false, told = false;
  std::thread opener;
  {
    BackgroundThread worker;
    worker.take(1, act([&] {
                  begun.count_down();
                  gate.wait();
                  did_first = true;
                }),
                [&told] { told = true; });
    worker.take(1, act([&did_second, held] { did_second = true; }), [&told] { told = true; });
    begun.wait();
    opener = std::thread([&] {
      while (held.use_count() > 1) std::this_thread::yield();  // until it ends, and has let go of the second
      gate.count_down();
    });
  }
  opener.join();
  CHECK(did_first && !did_second && !told);
}

}  // namespace

int main() {
  who_gives_it_something_goes_on_meanwhile();
  a_lane_with_much_leaves_others_their_turn();
  what_has_not_begun_is_dropped_with_it();
}
