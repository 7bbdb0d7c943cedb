#include "fetch.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "places.h"
#include "protocol.h"
#include "unique_fd.h"

namespace rocstar {
namespace {

// A program has chosen what lies under the name: only a regular file below the directory is opened, and nothing waits.
UniqueFd open_below(int directory, const std::string& name) {
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  UniqueFd file(static_cast<int>(syscall(SYS_openat2, directory, name.c_str(), &how, sizeof how)));
  struct stat info;
  if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return UniqueFd();
  return file;
}

// Where in the directory a file is that is asked for by a place of the program's. Any other absolute name is of none.
std::string within(const std::string& name) {
  for (const Place& place : kPlaces) {
    const size_t length = std::strlen(place.folder);
    if (name.compare(0, length, place.folder) != 0 || name[length] != '/') continue;
    std::string found(".");
    return found.append(place.within).append(name, length);
  }
  return name;
}

uint64_t size_of(int file) {
  struct stat info;
  return fstat(file, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

constexpr size_t kPieceBytes = 1 << 20;

// In pieces that a reader takes one by one. A file that shrinks meanwhile ends early. The buffer belongs to the call:
// the supervisor's loop and its worker read files of two owners at the same time.
void append_pieces(std::string& to, uint64_t id, std::string_view name, int file, uint64_t size) {
  const size_t most = std::min<uint64_t>(kPieceBytes, size);
  const auto piece = std::make_unique_for_overwrite<char[]>(most);
  uint64_t at = 0;
  do {
    const size_t wanted = std::min<uint64_t>(most, size - at);
    const ssize_t got = pread(file, piece.get(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    append_file(to, id, name, {piece.get(), static_cast<size_t>(std::max<ssize_t>(got, 0))});
    if (got <= 0) return;
    at += static_cast<uint64_t>(got);
  } while (at < size);
}

}  // namespace

void append_files(std::string& to, uint64_t id, int directory, std::string_view names, bool displays) {
  if (directory < 0) return;
  uint64_t left = kMostFetchedBytes;
  const auto append = [&](const std::string& name, bool is_display) {
    const UniqueFd file = open_below(directory, within(name));
    const uint64_t size = file ? size_of(file.get()) : 0;
    if (!file || (is_display && size == 0)) return false;
    if (size > left) return true;
    append_pieces(to, id, name, file.get(), size);
    left -= size;
    return true;
  };
  for (size_t end; (end = names.find('\n')) != std::string_view::npos; names.remove_prefix(end + 1)) {
    append(std::string(names.substr(0, end)), false);
  }
  for (int n = 0; displays && n < kMostDisplays; ++n) {
    if (!append(std::string(kDisplayFolder) + "/" + std::to_string(n), true)) return;
  }
}

}  // namespace rocstar
