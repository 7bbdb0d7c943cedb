// What programs leave in directories: weighed and removed, without following a link, however much and however deep.
#include "directory_tree.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "check.h"
#include "place.h"
#include "sweeper.h"

using namespace rocstar;
using namespace rocstar::fake;
namespace fs = std::filesystem;

namespace {

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
    CHECK(weigh_tree(directory.get(), 100).deep);  // who counts entries may not take it for empty
    CHECK(remove_contents(directory.get()) == 3);
    CHECK(fs::is_empty(place.path()));
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

// More levels than there are descriptors.
void the_deepest_is_removed_with_few_descriptors() {
  constexpr int kLevels = 3000;
  const Place place;
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    const UniqueFd top = open_directory(place.path());
    CHECK(chdir(place.path().c_str()) == 0);
    for (int i = 0; i < kLevels; ++i) CHECK(mkdir("1", 0700) == 0 && chdir("1") == 0);  // a name that may be wanted
    write_file("file");
    const rlimit few{.rlim_cur = 32, .rlim_max = 32};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK(remove_contents(top.get()) == kLevels + 1);
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(fs::is_empty(place.path()));
}

void each_file_that_goes_is_told() {
  const Place place;
  fs::create_directories(place / "a/b");
  for (const char* name : {"a/b/one", "a/two", "three"}) std::ofstream(place / name) << std::string(5000, 'x');
  const UniqueFd directory = open_directory(place.path());
  const Weight all = weigh_tree(directory.get(), 100);
  CHECK(all.whole && !all.deep && all.entries == 5 && all.bytes >= 3 * 5000);
  uint64_t told = 0, files = 0;
  remove_contents(directory.get(), [&](uint64_t bytes) {
    told += bytes;
    ++files;
  });
  CHECK(files == 3 && told >= 3 * 5000 && told <= all.bytes);
}

void a_weight_has_an_end() {
  const Place place;
  for (int i = 0; i < 50; ++i) write_file(place / std::to_string(i));
  const UniqueFd directory = open_directory(place.path());
  const Weight some = weigh_tree(directory.get(), 20);
  CHECK(some.entries == 20 && !some.whole && !some.deep);
  CHECK(weigh_tree(directory.get(), 50).whole);
}

void the_sweeper_tells_once_of_each_and_ends_with_all_gone() {
  const Place place;
  {
    Sweeper sweeper;
    CHECK(sweeper.emptied(true).empty());  // nothing to wait for
    for (uint32_t slot = 0; slot < 3; ++slot) {
      const std::string path = place / std::to_string(slot);
      fs::create_directories(path + "/deep");
      write_file(path + "/deep/file");
      Leftover left{.slot = slot, .path = path, .directory = open_directory(path), .bytes = 1 << 20};
      sweeper.take(left);
    }
    std::string told;
    while (told.size() < 3) {
      for (const uint32_t slot : sweeper.emptied(true)) {
        CHECK(!fs::exists(place / std::to_string(slot)));
        told += std::to_string(slot);
      }
    }
    CHECK(told == "012" && sweeper.bytes_left() == 0 && sweeper.emptied(true).empty());
    fs::create_directories(place / "last");
    Leftover last{.slot = 9, .path = place / "last", .directory = open_directory(place / "last")};
    sweeper.take(last);
  }
  CHECK(fs::is_empty(place.path()));
}

}  // namespace

int main() {
  everything_is_removed_and_no_link_followed();
  locked_directories_are_removed_too();
  the_deepest_is_removed_with_few_descriptors();
  each_file_that_goes_is_told();
  a_weight_has_an_end();
  the_sweeper_tells_once_of_each_and_ends_with_all_gone();
}
