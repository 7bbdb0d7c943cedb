#include "home.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "directory_tree.h"
#include "landlock.h"
#include "listing.h"

namespace rocstar {
namespace {

constexpr const char* kPrefix = "rocstar-";
// Free slots that keep their directory and ruleset: after many sessions the others give their descriptors back.
constexpr size_t kReadySlots = 16;
// Beyond, a new program waits for the sweeper rather than take one more: a pool has 16,384 users.
constexpr size_t kMostSlots = 8192;
// What is removed at once, in a fraction of a millisecond.
constexpr uint64_t kLittleBytes = 2 << 20, kFewEntries = 32;

// After a refusal nothing is counted for so long.
constexpr std::chrono::milliseconds kRecountRest{2};
// Of files that may be mapped, where that cannot be seen (another process's maps, without CAP_SYS_PTRACE).
constexpr uint64_t kMostUnseen = 1 << 14;

// No file of a directory, by the name that /proc has for it: standard input, or a map that processes share.
bool is_of_memory(std::string_view name) { return name.starts_with("/memfd:") || name.starts_with("/dev/zero"); }

// Files without a name that a process has open; where they cannot be looked at, all its descriptors but its usual four.
// Nothing where those cannot be counted either.
std::optional<uint64_t> unnamed_open(pid_t pid) {
  constexpr uint64_t kUsual = 4;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd";
  const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Listing entries = folder ? list(folder.get()) : Listing();
  struct stat info;
  uint64_t unnamed = 0, all = 0;
  bool seen = false;
  while (const dirent* entry = entries ? readdir(entries.get()) : nullptr) {
    if (is_dots(entry->d_name)) continue;
    ++all;
    if (fstatat(folder.get(), entry->d_name, &info, 0) != 0) continue;
    seen = true;
    if (!S_ISREG(info.st_mode) || info.st_nlink > 0) continue;
    char name[16] = {};
    unnamed += readlinkat(folder.get(), entry->d_name, name, sizeof name - 1) < 0 || !is_of_memory(name);
  }
  if (seen) return unnamed;
  if (stat(path.c_str(), &info) == 0) all = std::max(all, static_cast<uint64_t>(info.st_size));  // Linux 6.2
  if (all == 0) return {};
  return all - std::min(all, kUsual);
}

// Those that it has mapped. Nothing where that cannot be read.
std::optional<uint64_t> unnamed_mapped(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/maps";
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (!file) return {};
  constexpr std::string_view kDeleted = " (deleted)\n";
  uint64_t count = 0;
  char line[4352];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    const char* const name = std::strchr(line, '/');
    count += name != nullptr && std::string_view(name).ends_with(kDeleted) && !is_of_memory(name);
  }
  return count;
}

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

void sweep(const std::string& parent) {
  const UniqueFd directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Listing entries = directory ? list(directory.get()) : Listing();
  while (const dirent* entry = entries ? readdir(entries.get()) : nullptr) {
    if (std::strncmp(entry->d_name, kPrefix, std::strlen(kPrefix)) != 0) continue;
    char* end = nullptr;
    const long pid = std::strtol(entry->d_name + std::strlen(kPrefix), &end, 10);
    struct stat info;
    const bool ours = pid > 0 && end != nullptr && *end == '-' &&
                      fstatat(directory.get(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                      S_ISDIR(info.st_mode) && info.st_uid == geteuid();
    if (!ours || kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) continue;
    // A process of another PID namespace cannot be seen from here: its lock can.
    const UniqueFd held = open_below(directory.get(), entry->d_name);
    if (held && (flock(held.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK))
      remove_tree(parent + "/" + entry->d_name);
  }
}

// Of so many creations some were looked at: as if the others were like them.
uint64_t in_all(const Weight& found, uint64_t created) {
  return found.whole || found.entries == 0 ? found.bytes
                                           : found.bytes / found.entries * std::max(created, found.entries);
}

}  // namespace

std::string make_scratch_base(const std::string& parent) {
  sweep(parent);
  for (;;) {
    std::string path = parent + "/" + kPrefix + std::to_string(getpid()) + "-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) fail("mkdtemp(" + path + ")");
    // The kernel closes it with this process, however that ends.
    const int lock = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0 && errno != ENOENT) fail("open(" + path + ")");
    // Before the lock is held, who sweeps in another PID namespace may take the directory for a dead one's. Where a
    // file system has no locks, all are as if none were held.
    struct stat info;
    if (lock < 0 || (flock(lock, LOCK_EX) == 0 && fstat(lock, &info) == 0 && info.st_nlink == 0)) {
      if (lock >= 0) close(lock);
      continue;
    }
    // A slot's user must be able to pass through to its own directory below.
    if (chmod(path.c_str(), 0711) != 0) fail("chmod(" + path + ")");
    return path;
  }
}

Homes::Homes(HomeOptions options) : options_(std::move(options)) {
  if (!options_.landlock) options_.base.clear();
  if (options_.landlock && options_.base.empty()) {
    shared_ruleset_ = make_landlock_ruleset(options_.readable_paths, {});
  }
}

Homes::~Homes() {
  while (!sweeper_.emptied(true).empty()) {
  }
  for (const Slot& slot : slots_) {
    if (!slot.path.empty()) remove_tree(slot.path);
  }
  if (!options_.base.empty()) rmdir(options_.base.c_str());
}

void Homes::make(Slot& slot, uint32_t index) {
  if (options_.base.empty()) return;
  slot.path = draw_path();
  if (mkdir(slot.path.c_str(), 0700) != 0) fail("mkdir(" + slot.path + ")");
  const uint32_t uid = options_.first_uid + index;
  if (options_.slot_uid && chown(slot.path.c_str(), uid, uid) != 0) fail("chown(" + slot.path + ")");
  slot.directory.reset(open(slot.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!slot.directory) fail("open(" + slot.path + ")");
  slot.ruleset = make_landlock_ruleset(options_.readable_paths, slot.path);
}

// Whoever knows the name of another's directory can look up what is in it (stat), which nothing here forbids.
std::string Homes::draw_path() const {
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) fail("getrandom");
  char name[40];
  std::snprintf(name, sizeof name, "/%016llx%016llx", static_cast<unsigned long long>(random[0]),
                static_cast<unsigned long long>(random[1]));
  return options_.base + name;
}

std::shared_ptr<Home> Homes::take() {
  const bool wait = free_.empty() && slots_.size() >= kMostSlots;
  for (const uint32_t slot : sweeper_.emptied(wait)) free_.push_back(slot);
  if (free_.empty()) {
    Slot slot;
    make(slot, static_cast<uint32_t>(slots_.size()));
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.push_back(std::move(slot));
  }
  const uint32_t slot = free_.back();
  if (!options_.base.empty() && !slots_[slot].directory) {
    make(slots_[slot], slot);
  } else if (!options_.base.empty()) {
    std::string path = draw_path();
    if (rename(slots_[slot].path.c_str(), path.c_str()) != 0) fail("rename(" + slots_[slot].path + ")");
    slots_[slot].path = std::move(path);
    // When somebody looked into it before is nobody else's business.
    if (futimens(slots_[slot].directory.get(), nullptr) != 0) fail("futimens(" + slots_[slot].path + ")");
  }
  auto home = std::make_shared<Home>(*this, slot);
  free_.pop_back();
  return home;
}

// A quarter of the space is for programs that start.
bool lacks_space(uint64_t occupied, uint64_t leaving, uint64_t total) {
  return leaving > 0 && occupied > total / 4 * 3;
}

bool Homes::waits_for_space() {
  const uint64_t leaving = sweeper_.bytes_left();
  if (leaving == 0) return false;
  const std::optional<uint64_t> occupied = occupied_bytes();
  return occupied && lacks_space(*occupied, leaving, options_.scratch_bytes);
}

std::optional<uint64_t> Homes::taken_bytes() {
  const std::optional<uint64_t> occupied = occupied_bytes();
  return occupied ? std::optional(*occupied - std::min(*occupied, sweeper_.bytes_left())) : occupied;
}

std::optional<uint64_t> Homes::occupied_bytes() const {
  struct statfs now;
  if (options_.base.empty() || statfs(options_.base.c_str(), &now) != 0 || now.f_type != TMPFS_MAGIC) return {};
  const auto block = static_cast<uint64_t>(now.f_bsize);
  // The machine's own /tmp may be one as well, with others' files.
  if (now.f_blocks * block > options_.scratch_bytes + block) return {};
  return (now.f_blocks - now.f_bfree) * block;
}

// False if there is little to remove, or no thread for it.
bool Homes::leave_to_sweeper(uint32_t index, uint64_t created) {
  Slot& slot = slots_[index];
  const Weight found = weigh_tree(slot.directory.get(), kFewEntries);
  if (found.whole && found.bytes <= kLittleBytes) return false;
  const uint64_t bytes = in_all(found, created);
  Leftover left{.slot = index, .path = slot.path, .directory = std::move(slot.directory), .bytes = bytes};
  try {
    sweeper_.take(left);
  } catch (const std::system_error&) {
    slot.directory = std::move(left.directory);
    return false;
  }
  slot = Slot{};
  return true;
}

void Homes::give_back(uint32_t index, bool used, uint64_t created) {
  Slot& slot = slots_[index];
  if (created > 0 && slot.directory) {
    if (leave_to_sweeper(index, created)) return;
    remove_contents(slot.directory.get());
  }
  const bool many = free_.size() >= kReadySlots;
  if (slot.directory && (used || many)) {
    rmdir(slot.path.c_str());
    slot = Slot{};
  }
  // One that is to be made anew is taken last when there are many.
  free_.insert(many && !slot.directory ? free_.begin() : free_.end(), index);
}

// Homes' own slots move in memory when one is added: what another thread may ask for is kept here.
Home::Home(Homes& homes, uint32_t slot) : homes_(homes), slot_(slot), directory_(homes.slots_[slot].directory.get()) {}

Home::~Home() {
  homes_.used_ -= used_;
  homes_.give_back(slot_, used_, created_);
}

uint32_t Home::uid() const { return homes_.options_.slot_uid ? homes_.options_.first_uid + slot_ : 0; }
std::string_view Home::name() const {
  const std::string& path = homes_.slots_[slot_].path;
  return std::string_view(path).substr(path.rfind('/') + 1);
}
int Home::ruleset() const {
  const Homes::Slot& slot = homes_.slots_[slot_];
  return slot.ruleset ? slot.ruleset.get() : homes_.shared_ruleset_.get();
}

UniqueFd Home::compiler_ruleset() const {
  return make_landlock_ruleset({.executable = homes_.options_.tool_paths, .scratch = homes_.slots_[slot_].path});
}

UniqueFd Home::program_ruleset(int program) const {
  return make_landlock_ruleset({.readable = homes_.options_.library_paths,
                                .executable = homes_.options_.loader_paths,
                                .scratch = homes_.slots_[slot_].path,
                                .program = program});
}

UniqueFd Home::shell_ruleset() const {
  std::vector<std::string> executable = homes_.options_.loader_paths;
  executable.insert(executable.end(), homes_.options_.shell_paths.begin(), homes_.options_.shell_paths.end());
  return make_landlock_ruleset({.readable = homes_.options_.library_paths,
                                .executable = std::move(executable),
                                .scratch = homes_.slots_[slot_].path});
}

void Home::weigh(uint64_t& entries) {
  if (!used_ || entries == 0) return;
  const Weight found = weigh_tree(directory(), std::min(entries, kMostWeighed));
  entries -= found.entries;
  deep_ = found.deep;
  held_ = in_all(found, created_);
}

uint64_t Home::held_bytes(uint64_t file_bytes) const { return deep_ ? most_bytes(file_bytes) : held_; }

void Home::clear() {
  remove_contents(directory());
  created_ = held_ = 0;
  named_ = mapped_ = {};
  deep_ = false;
}

// Nothing is read of the program's memory, and no name is looked up for it: what a name or a path means may change
// before the kernel acts on it, what exists may not. A program that moves files and descriptors about while they are
// counted can hide a few: as many as it moves in the fraction of a millisecond that a count takes.
bool Home::may_create(uint64_t limit, const Holders& holders) {
  if (directory() < 0) return false;
  limit_ = limit;
  const bool many_named = named_.most() >= limit, many_mapped = mapped_.most() >= limit;
  if (many_named || many_mapped) {
    // One that asks again and again would have all others wait for the count.
    const auto now = std::chrono::steady_clock::now();
    if (now - refused_ < kRecountRest) return false;
    if ((many_named && !count_named(holders)) || (many_mapped && !count_mapped(holders))) {
      refused_ = now;
      return false;
    }
  }
  ++named_.since;
  ++mapped_.since;
  ++created_;
  homes_.used_ += !used_;
  used_ = true;
  return true;
}

// Whether there is room for one more.
bool Home::count_named(const Holders& holders) {
  const Weight found = weigh_tree(directory(), limit_);
  uint64_t count = found.deep ? limit_ : found.entries;
  if (count < limit_) {
    for (const pid_t pid : holders()) count += unnamed_open(pid).value_or(limit_);
  }
  named_ = {count, 0};
  return count < limit_;
}

bool Home::count_mapped(const Holders& holders) {
  uint64_t count = 0;
  for (const pid_t pid : holders()) {
    const std::optional<uint64_t> found = unnamed_mapped(pid);
    // Whose maps cannot be read here may hold as many as were made.
    count += found ? *found : created_ < kMostUnseen ? 0 : limit_;
  }
  mapped_ = {count, 0};
  return count < limit_;
}

}  // namespace rocstar
