#include "cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace rocstar {
namespace {

constexpr const char* kPrefix = "rocstar-";
constexpr const char* kRoot = "/sys/fs/cgroup";

struct Place {
  std::string parent;  // directory
  const char* limit;
  const char* events;
};

// The path after `marker` in /proc/self/cgroup; nothing if there is no such line.
std::optional<std::string> own_path(const char* marker) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/cgroup", "re"), std::fclose);
  char line[4096];
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
    const char* found = std::strstr(line, marker);
    if (found == nullptr) continue;
    std::string path = found + std::strlen(marker);
    while (!path.empty() && (path.back() == '\n' || path.back() == '/')) path.pop_back();
    return path;
  }
  return std::nullopt;
}

std::optional<Place> place() {
  if (const auto path = own_path(":memory:")) {
    return Place{std::string(kRoot) + "/memory" + *path, "memory.limit_in_bytes", "memory.oom_control"};
  }
  auto path = own_path("0::");
  if (!path || access((std::string(kRoot) + "/cgroup.controllers").c_str(), R_OK) != 0) return std::nullopt;
  const size_t cut = path->rfind('/');
  path->resize(cut == std::string::npos ? 0 : cut);
  return Place{kRoot + *path, "memory.max", "memory.events"};
}

bool write_below(int directory, const char* name, const std::string& text) {
  const UniqueFd file(openat(directory, name, O_WRONLY | O_CLOEXEC));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void sweep(int parent) {
  const int own = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = own < 0 ? nullptr : fdopendir(own);
  while (const dirent* entry = entries != nullptr ? readdir(entries) : nullptr) {
    if (std::strncmp(entry->d_name, kPrefix, std::strlen(kPrefix)) != 0) continue;
    const long pid = std::strtol(entry->d_name + std::strlen(kPrefix), nullptr, 10);
    // One with processes cannot be removed anyway.
    if (pid > 0 && kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)
      unlinkat(parent, entry->d_name, AT_REMOVEDIR);
  }
  if (entries != nullptr) closedir(entries);
}

}  // namespace

std::optional<Cgroup> Cgroup::enter(uint64_t memory_bytes) {
  const auto at = place();
  if (!at) return std::nullopt;
  Cgroup made;
  made.parent_.reset(open(at->parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made.parent_) return std::nullopt;
  made.parent_procs_.reset(openat(made.parent_.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  sweep(made.parent_.get());
  const std::string name = kPrefix + std::to_string(getpid());
  if (!made.parent_procs_ || mkdirat(made.parent_.get(), name.c_str(), 0755) != 0) return std::nullopt;
  made.name_ = name;
  const UniqueFd group(openat(made.parent_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string limit = std::to_string(memory_bytes);
  if (!group || !write_below(group.get(), at->limit, limit)) return std::nullopt;
  made.events_.reset(openat(group.get(), at->events, O_RDONLY | O_CLOEXEC));
  if (!made.events_ || !write_below(group.get(), "cgroup.procs", std::to_string(getpid()))) return std::nullopt;
  return made;
}

Cgroup::~Cgroup() {
  if (name_.empty() || !parent_) return;
  const std::string pid = std::to_string(getpid());
  [[maybe_unused]] const ssize_t done = write(parent_procs_.get(), pid.data(), pid.size());
  unlinkat(parent_.get(), name_.c_str(), AT_REMOVEDIR);
}

uint64_t Cgroup::kills() const {
  char text[1024] = {};
  if (!events_ || pread(events_.get(), text, sizeof text - 1, 0) <= 0) return 0;
  // Not "oom_kill_disable", which comes first in version 1.
  const char* found = std::strstr(text, "oom_kill ");
  return found == nullptr ? 0 : std::strtoull(found + std::strlen("oom_kill "), nullptr, 10);
}

}  // namespace rocstar
