// Scratch directories: empty for each owner, counted, weighed.
#include "home.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "directory_tree.h"
#include "landlock.h"
#include "place.h"

using namespace rocstar;
using namespace rocstar::fake;
namespace fs = std::filesystem;

namespace {

HomeOptions options_in(const std::string& parent) {
  return {.base = make_scratch_base(parent), .readable_paths = {"/usr"}, .landlock = true};
}

std::string path_of(const Home& home) { return fs::read_symlink("/proc/self/fd/" + std::to_string(home.directory())); }

ino_t inode_of(const std::string& path) {
  struct stat info{};
  CHECK(stat(path.c_str(), &info) == 0);
  return info.st_ino;
}

// The thread sanitizer maps files that it has removed in each process.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMapsRemovedFiles = true;
#else
constexpr bool kMapsRemovedFiles = false;
#endif

std::vector<pid_t> nobody() { return {}; }
std::vector<pid_t> ourselves() { return {getpid()}; }

UniqueFd make(const Home& home, const char* name) {
  return UniqueFd(openat(home.directory(), name, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
}

void a_slot_is_gone_when_its_last_owner_lets_go() {
  const Place place;
  {
    Homes homes(options_in(place.path()));
    std::shared_ptr<Home> first = homes.take();
    std::shared_ptr<Home> branch = first, second = homes.take();
    CHECK(first->directory() >= 0 && first->directory() != second->directory());
    const std::string path = path_of(*first);
    CHECK(first->may_create(64, nobody));
    CHECK(mkdirat(first->directory(), "made", 0700) == 0);
    first.reset();
    CHECK(fs::exists(path + "/made"));  // the branch is still there
    branch.reset();
    CHECK(!fs::exists(path));
  }
  CHECK(fs::is_empty(place.path()));
}

// A directory's places of entries count what was ever in it: the next owner would read how much that was.
void nobody_gets_a_directory_in_which_something_was() {
  const Place place;
  Homes homes(options_in(place.path()));
  std::shared_ptr<Home> home = homes.take();
  const ino_t clean = inode_of(path_of(*home));
  const std::string name = path_of(*home);
  home.reset();
  home = homes.take();
  CHECK(inode_of(path_of(*home)) == clean);                               // nothing was made there
  CHECK(path_of(*home) != name);                                          // but its name may have been told
  const UniqueFd held(open(path_of(*home).c_str(), O_PATH | O_CLOEXEC));  // its number is not given again meanwhile
  CHECK(home->may_create(1, nobody) && mkdirat(home->directory(), "made", 0700) == 0);
  home->clear();
  home.reset();
  CHECK(inode_of(path_of(*homes.take())) != clean);
}

// Where much is left, the slot is not used again before it is gone, and nobody waits for that.
void much_that_is_left_goes_before_its_slot_is_used_again() {
  const Place place;
  HomeOptions options = options_in(place.path());
  options.slot_uid = geteuid() == 0;
  Homes homes(options);
  std::shared_ptr<Home> home = homes.take();
  const std::string path = path_of(*home);
  const uint32_t uid = home->uid();
  for (int i = 0; i < 500; ++i) {
    CHECK(home->may_create(500, nobody));
    write_file(path + "/" + std::to_string(i));
  }
  home.reset();
  std::vector<std::shared_ptr<Home>> others;
  do {
    others.push_back(homes.take());
  } while (options.slot_uid && others.back()->uid() != uid && others.size() < 10'000);
  CHECK(!options.slot_uid || others.back()->uid() == uid);
  if (options.slot_uid) CHECK(!fs::exists(path));
  CHECK(path_of(*others.back()) != path);
}

// Who hides files there counts with all that it may have made.
void what_is_too_deep_to_be_seen_counts_in_full() {
  const Place place;
  Homes homes(options_in(place.path()));
  const std::shared_ptr<Home> home = homes.take();
  std::string path = path_of(*home);
  for (uint32_t i = 0; i < kDeepest + 2; ++i) {
    CHECK(home->may_create(1000, nobody));
    fs::create_directory(path += "/d");
  }
  uint64_t entries = 1000;
  home->weigh(entries);
  CHECK(home->held_bytes(1 << 20) == (kDeepest + 2) * (1 << 20));
}

// Created and removed again and again, or opened again and again: one file.
void what_exists_counts() {
  const Place place;
  Homes homes(options_in(place.path()));
  CHECK(!homes.take()->may_create(0, nobody));
  std::shared_ptr<Home> home = homes.take();
  for (int i = 0; i < 1000; ++i) {
    CHECK(home->may_create(3, ourselves));
    CHECK(make(*home, "x") && (i % 2 == 0 || unlinkat(home->directory(), "x", 0) == 0));
  }
  for (const char* name : {"x", "y", "z"}) CHECK(home->may_create(3, ourselves) && make(*home, name));
  CHECK(!home->may_create(3, ourselves) && !home->may_create(3, ourselves));
  home.reset();
  CHECK(homes.take()->may_create(3, nobody));  // each owner has its own number
}

// One that has lost its name takes its space for as long as it is open, or mapped.
void files_without_a_name_count() {
  const Place place;
  Homes homes(options_in(place.path()));
  std::shared_ptr<Home> home = homes.take();
  std::vector<UniqueFd> held;
  const auto hold = [&] {
    if (!home->may_create(8, ourselves)) return false;
    held.push_back(make(*home, "x"));
    return unlinkat(home->directory(), "x", 0) == 0 && ftruncate(held.back().get(), 4096) == 0;
  };
  while (hold()) CHECK(held.size() <= 8);
  CHECK(held.size() == 8);
  std::vector<void*> maps;
  for (UniqueFd& file : held) {
    maps.push_back(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), 0));
    file.reset();
  }
  held.clear();
  const auto begun = std::chrono::steady_clock::now();
  do {
    CHECK(!hold());
  } while (std::chrono::steady_clock::now() < begun + std::chrono::milliseconds(20));  // a refusal holds for a moment
  for (void* map : maps) munmap(map, 4096);
  while (!home->may_create(8, ourselves)) std::this_thread::yield();
}

// 20,000 files of each of three idle sessions held the supervisor for 85 ms of processor time, every second.
void no_more_names_are_looked_at_than_a_few() {
  const Place place;
  Homes homes(options_in(place.path()));
  std::shared_ptr<Home> home = homes.take();
  const auto weigh = [&home](uint64_t most) {
    uint64_t left = most;
    home->weigh(left);
    return most - left;
  };
  const auto held = [&home] { return home->held_bytes(1 << 20); };
  CHECK(weigh(10'000) == 0 && held() == 0);
  const std::string page(4096, 'x');
  const uint64_t count = 3 * kMostWeighed;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    CHECK(home->may_create(count, nobody));
    const UniqueFd file(openat(home->directory(), std::to_string(i).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    CHECK(write(file.get(), page.data(), page.size()) == static_cast<ssize_t>(page.size()));
    struct stat info;
    CHECK(fstat(file.get(), &info) == 0);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    if (i + 1 == kMostWeighed / 2) CHECK(weigh(10'000) == i + 1 && held() == bytes);
  }
  CHECK(held() == bytes / 6);  // as it was then
  CHECK(weigh(10'000) == kMostWeighed && held() == bytes);
  CHECK(weigh(10) == 10 && held() == bytes);
  CHECK(weigh(0) == 0 && held() == bytes);  // no time at all: as before
  home->clear();
  CHECK(held() == 0);
}

void a_dead_owners_directory_is_removed_by_the_next() {
  const Place place;
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    const std::string base = make_scratch_base(place.path());
    fs::create_directories(base + "/0/deep");
    _exit(0);
  }
  CHECK(waitpid(pid, nullptr, 0) == pid);
  CHECK(!fs::is_empty(place.path()));
  fs::create_directory(place / "rocstar-notanumber");
  fs::create_directory(place / "other");
  write_file(place / "rocstar-99999999-file");
  const std::string mine = make_scratch_base(place.path());
  const std::string second = make_scratch_base(place.path());
  CHECK(mine != second && fs::exists(mine));  // the living are left alone
  size_t left = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(place.path())) ++left;
  CHECK(left == 5);
}

void a_directory_whose_owner_cannot_be_seen_stays() {
  const Place place;
  int ready[2], end[2];
  CHECK(pipe(ready) == 0 && pipe(end) == 0);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  char byte = 0;
  if (pid == 0) {
    close(end[1]);
    // By a name as a process of another PID namespace has it.
    fs::rename(make_scratch_base(place.path()), place / "rocstar-99999999-theirs");
    if (write(ready[1], "x", 1) != 1 || read(end[0], &byte, 1) != 0) _exit(1);
    _exit(0);
  }
  CHECK(read(ready[0], &byte, 1) == 1);
  make_scratch_base(place.path());
  CHECK(fs::exists(place / "rocstar-99999999-theirs"));
  close(end[1]);
  int status = 1;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  make_scratch_base(place.path());
  CHECK(!fs::exists(place / "rocstar-99999999-theirs"));
}

void without_a_base_there_is_no_scratch() {
  Homes homes({.base = "", .readable_paths = {"/usr"}, .landlock = true});
  const std::shared_ptr<Home> home = homes.take();
  CHECK(home->directory() == -1 && home->ruleset() >= 0 && home->uid() == 0);
  CHECK(!home->may_create(100, nobody));
}

void each_slot_has_a_uid_of_its_own() {
  Homes homes({.base = "", .landlock = false, .slot_uid = true, .first_uid = 100'000});
  const std::shared_ptr<Home> first = homes.take(), second = homes.take();
  CHECK(first->uid() >= 100'000 && second->uid() >= 100'000 && first->uid() != second->uid());
  CHECK(first->ruleset() == -1);
}

// A second thread reads files of a directory while the loop takes homes for new programs.
void a_homes_directory_is_the_same_from_another_thread() {
  const Place place;
  Homes homes(options_in(place.path()));
  const std::shared_ptr<Home> first = homes.take();
  std::atomic<bool> more = true;
  std::thread worker([&, expected = first->directory()] {
    while (more) CHECK(first->directory() == expected);
  });
  std::vector<std::shared_ptr<Home>> others;
  for (int i = 0; i < 200; ++i) others.push_back(homes.take());
  more = false;
  worker.join();
}

}  // namespace

void programs_wait_only_for_space_that_is_being_freed() {
  CHECK(!lacks_space(16, 0, 16));  // nothing is being removed: waiting would not help
  CHECK(!lacks_space(12, 8, 16));
  CHECK(lacks_space(13, 1, 16));
}

int main() {
  a_dead_owners_directory_is_removed_by_the_next();
  a_directory_whose_owner_cannot_be_seen_stays();
  each_slot_has_a_uid_of_its_own();
  programs_wait_only_for_space_that_is_being_freed();
  if (landlock_abi() == 0) return 0;
  a_slot_is_gone_when_its_last_owner_lets_go();
  nobody_gets_a_directory_in_which_something_was();
  much_that_is_left_goes_before_its_slot_is_used_again();
  what_is_too_deep_to_be_seen_counts_in_full();
  if (!kMapsRemovedFiles) {
    what_exists_counts();
    files_without_a_name_count();
  }
  no_more_names_are_looked_at_than_a_few();
  without_a_base_there_is_no_scratch();
  a_homes_directory_is_the_same_from_another_thread();
}
