#include "directory_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "listing.h"

namespace rocstar {
namespace {

constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE, which older C libraries do not name

uint64_t bytes_of(const struct stat& info) { return static_cast<uint64_t>(info.st_blocks) * 512; }

void weigh(int directory, uint64_t most_entries, uint32_t depth, Weight& found) {
  const Listing entries = list(directory);
  while (const dirent* entry = entries ? readdir(entries.get()) : nullptr) {
    if (is_dots(entry->d_name)) continue;
    if (found.entries == most_entries) {
      found.whole = false;
      return;
    }
    ++found.entries;
    struct stat info;
    if (fstatat(directory, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    found.bytes += bytes_of(info);
    if (!S_ISDIR(info.st_mode)) continue;
    if (depth == kDeepest) {
      found.whole = false;
      found.deep = true;
    } else if (const UniqueFd below = open_below(directory, entry->d_name); below) {
      weigh(below.get(), most_entries, depth + 1, found);
    } else if (errno != ENOENT) {  // its rights hide from us what is in it
      found.whole = false;
      found.deep = true;
    }
  }
}

bool remove_file(int directory, const char* name, const Gone& gone) {
  struct stat info;
  const bool known = gone != nullptr && fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (unlinkat(directory, name, 0) != 0) return false;
  if (known) gone(bytes_of(info));
  return true;
}

// A program may have taken the rights of its own directory away from everybody. Where they cannot be given back, what
// is done next fails.
void give_rights(int directory, const char* name) {
  [[maybe_unused]] const int given = fchmodat(directory, name, 0700, 0);
}

UniqueFd unlock(int directory, const char* name) {
  give_rights(directory, name);
  return open_below(directory, name);
}

// Removes the files of a directory, and moves its directories to `top`.
uint64_t empty(int directory, int top, uint32_t& names, const Gone& gone) {
  uint64_t removed = 0;
  const Listing entries = list(directory);
  while (const dirent* entry = entries ? readdir(entries.get()) : nullptr) {
    if (is_dots(entry->d_name)) continue;
    if (remove_file(directory, entry->d_name, gone) || unlinkat(directory, entry->d_name, AT_REMOVEDIR) == 0) {
      ++removed;
      continue;
    }
    give_rights(directory, entry->d_name);  // its entry for the directory above is written, too
    char name[24];
    do {
      std::snprintf(name, sizeof name, "%u", names++);
    } while (syscall(SYS_renameat2, directory, entry->d_name, top, name, kNoReplace) != 0 && errno == EEXIST);
  }
  return removed;
}

}  // namespace

Weight weigh_tree(int directory, uint64_t most_entries) {
  Weight found;
  weigh(directory, most_entries, 0, found);
  return found;
}

// A program can nest directories so deep that there are no descriptors for all levels. So what is in a directory of
// this one comes up here before it goes, and there are never more than two levels.
uint64_t remove_contents(int directory, const Gone& gone) {
  uint64_t removed = 0;
  uint32_t names = 0;
  for (bool again = true; again;) {
    again = false;
    const Listing entries = list(directory);
    while (const dirent* entry = entries ? readdir(entries.get()) : nullptr) {
      if (is_dots(entry->d_name)) continue;
      if (!remove_file(directory, entry->d_name, gone)) {
        if (const UniqueFd below = unlock(directory, entry->d_name); below) {
          removed += empty(below.get(), directory, names, gone);
        }
        if (unlinkat(directory, entry->d_name, AT_REMOVEDIR) != 0) continue;
      }
      ++removed;
      again = true;  // what came up meanwhile may not be listed
    }
  }
  return removed;
}

void remove_tree(const std::string& path) {
  if (const UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)); directory) {
    remove_contents(directory.get());
  }
  rmdir(path.c_str());
}

}  // namespace rocstar
