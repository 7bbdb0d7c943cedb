#include "worker.h"

#include <poll.h>

#include <latch>
#include <string>

#include "check.h"

using rocstar::Worker;

namespace {

void wait_for(const Worker& worker) {
  pollfd waiting{worker.fd(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 100'000) == 1);
}

void who_gives_it_something_goes_on_meanwhile() {
  Worker worker;
  std::latch gate(1);
  std::string told;
  worker.take(1, {[&gate] { gate.wait(); }, [&told] { told += '1'; }});
  worker.take(1, {[] {}, [&told] { told += '2'; }});
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
  Worker worker;
  std::latch begun(1), gate(1);
  std::string told;
  worker.take(1, {[&] {
                    begun.count_down();
                    gate.wait();
                  },
                  [] {}});
  begun.wait();
  for (const char* one = "aaaa"; *one != 0; ++one) worker.take(1, {[] {}, [&told] { told += 'a'; }});
  worker.take(2, {[] {}, [&told] { told += 'b'; }});
  worker.take(2, {[] {}, [&told] { told += 'b'; }});
  worker.take(3, {[] {}, [&told] { told += 'c'; }});
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
    Worker worker;
    worker.take(1, {[&] {
                      begun.count_down();
                      gate.wait();
                      did_first = true;
                    },
                    [&told] { told = true; }});
    worker.take(1, {[&did_second, held] { did_second = true; }, [&told] { told = true; }});
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
