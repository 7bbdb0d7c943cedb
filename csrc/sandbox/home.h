// A slot: the uid and the scratch directory of a child, reused by later children.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sweeper.h"
#include "unique_fd.h"

namespace rocstar {

struct HomeOptions {
  std::string base;  // an existing directory of ours; empty: no scratch directories
  std::vector<std::string> readable_paths;
  std::vector<std::string> tool_paths;     // of the C++ flavour: files that a compiler reads and executes
  std::vector<std::string> library_paths;  // files that a compiled program and a shell's tools read
  std::vector<std::string> loader_paths;   // their dynamic loaders
  std::vector<std::string> shell_paths;    // bash and its tools
  bool landlock = false;
  bool slot_uid = false;
  uint64_t scratch_bytes = 0;  // for all directories together
  uint32_t first_uid = 100000;
};

// Entries of one directory, each of which takes the kernel a microsecond or two.
inline constexpr uint64_t kMostWeighed = 1024;

class Homes;

// The processes that may hold files of a directory.
using Holders = std::function<std::vector<pid_t>()>;

// The existing entries: those of the last count, and those that were granted since.
struct Tally {
  uint64_t counted = 0, since = 0;
  uint64_t most() const { return counted + since; }
};

// Belongs to one child, or to the branches of one session together. Invariants: when the last owner has let go, what
// was created in the directory is removed, and only then the slot is used again; a directory in which something was
// created is nobody's second one (its entries' places count what was there); no two owners have one name for it, and
// none can guess another's.
class Home {
 public:
  Home(Homes& homes, uint32_t slot);
  Home(const Home&) = delete;
  ~Home();

  uint32_t uid() const;
  int directory() const { return directory_; }  // -1 without scratch; the same from any thread while it lives
  std::string_view name() const;                // of the directory, within the base
  int ruleset() const;                          // -1 without Landlock
  // For the C++ and bash flavours, which need Landlock and scratch. Throw std::system_error.
  UniqueFd compiler_ruleset() const;
  UniqueFd program_ruleset(int program) const;
  UniqueFd shell_ruleset() const;
  // Grants one creation more. False when as many as `limit` exist: files and directories that have a name, and files
  // without one that a process has open. Files without one that are only mapped may be as many again. What exists is
  // counted anew when, with all that was granted since, it may be too much.
  bool may_create(uint64_t limit, const Holders& holders);
  // Looks at what there is by its names, at `entries` of them and kMostWeighed at most, and takes off how many those
  // were: an open file that has no name is not seen.
  void weigh(uint64_t& entries);
  // On the disk or in memory, as it was weighed last. Of many files some stand for all; who hides them deep down may
  // have as much as it has made.
  uint64_t held_bytes(uint64_t file_bytes) const;
  // The bytes that its creations allow, whether they have a name or not.
  uint64_t most_bytes(uint64_t file_bytes) const { return std::min(created_, 2 * limit_) * file_bytes; }
  bool used() const { return used_; }
  // Removes the contents: the next process starts with an empty directory.
  void clear();

 private:
  Homes& homes_;
  uint32_t slot_;
  int directory_;
  bool count_named(const Holders& holders);
  bool count_mapped(const Holders& holders);

  uint64_t created_ = 0;  // in all
  uint64_t limit_ = 0;    // of those that exist at a time, as it was given last
  Tally named_, mapped_;
  std::chrono::steady_clock::time_point refused_{};
  uint64_t held_ = 0;
  bool deep_ = false;
  bool used_ = false;  // something was created, whether it was cleared since or not
};

// True if a program that starts should wait until `leaving` bytes of the `occupied` ones are removed.
bool lacks_space(uint64_t occupied, uint64_t leaving, uint64_t total);

class Homes {
 public:
  // Throws std::system_error when the kernel refuses a ruleset.
  explicit Homes(HomeOptions options);
  ~Homes();

  std::shared_ptr<Home> take();
  uint64_t scratch_bytes() const { return options_.scratch_bytes; }
  bool has_scratch() const { return !options_.base.empty(); }
  // Directories in which something was created.
  uint32_t used() const { return used_; }
  // Of all directories together, without what is being removed, where they have a file system of their own; nothing
  // where they share one.
  std::optional<uint64_t> taken_bytes();
  // True while removed files still take so much of a file system of our own that a new program's write may fail.
  bool waits_for_space();

 private:
  friend class Home;
  struct Slot {
    std::string path;
    UniqueFd directory;
    UniqueFd ruleset;
  };

  void make(Slot& slot, uint32_t index);
  void give_back(uint32_t index, bool used, uint64_t created);
  bool leave_to_sweeper(uint32_t index, uint64_t created);
  std::string draw_path() const;
  std::optional<uint64_t> occupied_bytes() const;  // taken_bytes() and what is being removed

  HomeOptions options_;
  uint32_t used_ = 0;
  UniqueFd shared_ruleset_;  // without scratch, one for all
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  Sweeper sweeper_;
};

// A new directory for the slots, `<parent>/rocstar-<pid>-XXXXXX`, after removing those whose process is gone. This
// process holds a lock on it to its end, for others that share `parent` and not its PID namespace: two containers.
std::string make_scratch_base(const std::string& parent);

}  // namespace rocstar
