// Scratch directories: empty for each owner, counted, cleaned without following a link.
#include "home.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "landlock.h"

using namespace rocstar;
namespace fs = std::filesystem;

namespace {

// A directory of the test's own, removed at its end.
class Place {
 public:
  Place() : path_("/tmp/rocstar_test-XXXXXX") { CHECK(mkdtemp(path_.data()) != nullptr); }
  ~Place() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

UniqueFd open_directory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK(fd);
  return fd;
}

void write_file(const std::string& path) { std::ofstream(path) << "x"; }

void everything_is_removed_and_no_link_followed() {
  const Place place, elsewhere;
  write_file(elsewhere / "kept");
  fs::create_directories(place / "a/b/c");
  write_file(place / "a/b/file");
  write_file(place / "-rf \n *");
  fs::create_symlink(elsewhere / "kept", place / "to_file");
  fs::create_directory_symlink(elsewhere.path(), place / "to_directory");
  fs::create_directory_symlink(elsewhere.path(), place / "a/deeper");
  CHECK(mkfifo((place / "fifo").c_str(), 0600) == 0);
  fs::create_directory(place / "locked");
  write_file(place / "locked/file");
  fs::permissions(place / "locked", fs::perms::none);
  const UniqueFd directory = open_directory(place.path());
  CHECK(remove_contents(directory.get()) == 11);
  CHECK(fs::is_empty(place.path()));
  CHECK(fs::exists(elsewhere / "kept"));
}

// Not as root, whom no mode stops: what a program has locked away is removed all the same.
void locked_directories_are_removed_too() {
  const Place place;
  CHECK(chmod(place.path().c_str(), 0777) == 0);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    if (geteuid() == 0) CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(mkdir((place / "blind").c_str(), 0333) == 0);
    write_file(place / "blind/one");
    CHECK(mkdir((place / "blind/locked").c_str(), 0) == 0);
    const UniqueFd directory = open_directory(place.path());
    CHECK(remove_contents(directory.get()) == 3);
    CHECK(fs::is_empty(place.path()));
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

HomeOptions options_in(const std::string& parent) {
  return {.base = make_scratch_base(parent), .readable_paths = {"/usr"}, .landlock = true};
}

std::string path_of(const Home& home) { return fs::read_symlink("/proc/self/fd/" + std::to_string(home.directory())); }

ino_t inode_of(const std::string& path) {
  struct stat info{};
  CHECK(stat(path.c_str(), &info) == 0);
  return info.st_ino;
}

void a_slot_is_gone_when_its_last_owner_lets_go() {
  const Place place;
  {
    Homes homes(options_in(place.path()));
    std::shared_ptr<Home> first = homes.take();
    std::shared_ptr<Home> branch = first, second = homes.take();
    CHECK(first->directory() >= 0 && first->directory() != second->directory());
    const std::string path = path_of(*first);
    CHECK(first->may_create(64));
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
  CHECK(home->may_create(1) && mkdirat(home->directory(), "made", 0700) == 0);
  home->clear();
  home.reset();
  CHECK(inode_of(path_of(*homes.take())) != clean);
}

// Files that are gone count too: an open one takes its space still, and looking for the rest would take time.
void only_so_many_are_created_in_all() {
  const Place place;
  Homes homes(options_in(place.path()));
  std::shared_ptr<Home> home = homes.take();
  CHECK(!home->may_create(0));
  for (int i = 0; i < 3; ++i) {
    CHECK(home->may_create(3));
    const UniqueFd file(openat(home->directory(), "x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    CHECK(file && unlinkat(home->directory(), "x", 0) == 0);
  }
  CHECK(!home->may_create(3) && !home->may_create(3));
  home.reset();
  CHECK(homes.take()->may_create(3));  // each owner has its own number
}

// 20,000 files of each of three idle sessions held the supervisor for 85 ms of processor time, every second.
void no_more_names_are_looked_at_than_a_few() {
  const Place place;
  Homes homes(options_in(place.path()));
  std::shared_ptr<Home> home = homes.take();
  CHECK(home->measure() == 0 && home->held_bytes() == 0);
  const std::string page(4096, 'x');
  const uint64_t count = 3 * kMostMeasured;
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    CHECK(home->may_create(count));
    const UniqueFd file(openat(home->directory(), std::to_string(i).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    CHECK(write(file.get(), page.data(), page.size()) == static_cast<ssize_t>(page.size()));
    struct stat info;
    CHECK(fstat(file.get(), &info) == 0);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    if (i + 1 == kMostMeasured / 2) CHECK(home->measure() == i + 1 && home->held_bytes() == bytes);
  }
  CHECK(home->held_bytes() == bytes / 6);  // as it was then
  CHECK(home->measure() == kMostMeasured && home->held_bytes() == bytes);
  home->clear();
  CHECK(home->held_bytes() == 0);
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
  CHECK(!home->may_create(100));
}

void each_slot_has_a_uid_of_its_own() {
  Homes homes({.base = "", .landlock = false, .slot_uid = true, .first_uid = 100'000});
  const std::shared_ptr<Home> first = homes.take(), second = homes.take();
  CHECK(first->uid() >= 100'000 && second->uid() >= 100'000 && first->uid() != second->uid());
  CHECK(first->ruleset() == -1);
}

}  // namespace

int main() {
  everything_is_removed_and_no_link_followed();
  locked_directories_are_removed_too();
  a_dead_owners_directory_is_removed_by_the_next();
  a_directory_whose_owner_cannot_be_seen_stays();
  each_slot_has_a_uid_of_its_own();
  if (landlock_abi() == 0) return 0;
  a_slot_is_gone_when_its_last_owner_lets_go();
  nobody_gets_a_directory_in_which_something_was();
  only_so_many_are_created_in_all();
  no_more_names_are_looked_at_than_a_few();
  without_a_base_there_is_no_scratch();
}
