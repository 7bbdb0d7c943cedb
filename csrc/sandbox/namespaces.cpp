#include "namespaces.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "unique_fd.h"

#ifndef __NR_mount_setattr
#define __NR_mount_setattr 442
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

namespace rocstar {
namespace {

constexpr int kCommon = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS;

constexpr const char* kHidden[] = {"/root", "/home", "/run", "/var", "/srv", "/mnt", "/media", "/boot", "/tmp"};

// What these tell changes with what others do: memory that anybody has asked for, to the page, and clock rates.
constexpr const char* kFrozen[] = {"/proc/meminfo", "/proc/cpuinfo"};
constexpr const char* kAside = "/sys";  // there on every machine, for as long as the frozen files need a place

// As in <linux/mount.h>, which older systems lack and which quarrels with <sys/mount.h>.
struct MountAttr {
  uint64_t set, clear, propagation, userns_fd;
};
constexpr uint64_t kReadOnly = 1;
constexpr uint64_t kNoSetuid = 2;

enum class UserNamespace { kNone, kAllIds, kOwnId };

bool write_file(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

bool map_own_ids(uid_t uid, gid_t gid) {
  const std::string user = std::to_string(uid), group = std::to_string(gid);
  return write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/uid_map", user + " " + user + " 1") &&
         write_file("/proc/self/gid_map", group + " " + group + " 1");
}

// The ids of this user namespace, each as itself: what a new one needs for its root to have users for programs.
std::string same_ids(const char* map) {
  std::string all;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(map, "re"), std::fclose);
  unsigned inside = 0, outside = 0, count = 0;
  while (file && std::fscanf(file.get(), "%u %u %u", &inside, &outside, &count) == 3) {
    const std::string first = std::to_string(inside);
    all += first + " " + first + " " + std::to_string(count) + "\n";
  }
  return all;
}

// Only who is outside of a new namespace may give it more than one id: a process that waits for it to be there.
class Mapper {
 public:
  Mapper() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
    const UniqueFd theirs(ends[0]);
    ours_.reset(ends[1]);
    pid_ = fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ == 0) map(theirs.get());
  }
  // Whether all ids are there: asked in the new namespace, and at most once.
  bool map_all() {
    const char go = 'g';
    const bool told = write(ours_.get(), &go, 1) == 1;
    int status = 1;
    return waitpid(std::exchange(pid_, -1), &status, 0) > 0 && told && status == 0;
  }
  ~Mapper() {
    ours_.reset();  // nobody goes on
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }

 private:
  [[noreturn]] void map(int theirs) {
    ours_.reset();
    const std::string who = "/proc/" + std::to_string(getppid());
    const std::string users = same_ids("/proc/self/uid_map"), groups = same_ids("/proc/self/gid_map");
    char go;
    const bool asked = read(theirs, &go, 1) == 1;
    const bool all =
        asked && write_file((who + "/uid_map").c_str(), users) && write_file((who + "/gid_map").c_str(), groups);
    _exit(all ? 0 : 1);
  }

  UniqueFd ours_;
  pid_t pid_ = -1;
};

bool unshare_all(UserNamespace how) {
  if (how == UserNamespace::kNone) return unshare(kCommon) == 0;
  if (how == UserNamespace::kAllIds) {
    Mapper mapper;
    return unshare(CLONE_NEWUSER | kCommon) == 0 && mapper.map_all();
  }
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  return unshare(CLONE_NEWUSER | kCommon) == 0 && map_own_ids(uid, gid);
}

bool below(const std::string& path, const std::string& folder) {
  return path == folder || path.compare(0, folder.size() + 1, folder + "/") == 0;
}

bool is_directory(const char* path) {
  struct stat info;
  return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool hide(const char* path) {
  return mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=0711") == 0;
}

// A directory below `base`, with all between. False when one cannot be made.
bool make_folders(const std::string& base, const std::string& path) {
  for (size_t at = base.size(); at != std::string::npos;) {
    at = path.find('/', at + 1);
    if (mkdir(path.substr(0, at).c_str(), 0711) != 0 && errno != EEXIST) return false;
  }
  return true;
}

bool show(const UniqueFd& what, const std::string& path) {
  struct stat info;
  if (fstat(what.get(), &info) != 0) return false;
  if (!S_ISDIR(info.st_mode)) {
    const UniqueFd made(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0444));
    if (!made) return false;
  }
  const std::string source = "/proc/self/fd/" + std::to_string(what.get());
  return mount(source.c_str(), path.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
}

// The descriptors are had before the folder is hidden, so that it does not matter who may go there.
bool open_to_all(const std::string& folder, const std::vector<std::string>& kept_paths) {
  std::map<std::string, UniqueFd> kept;  // shorter paths first: what lies below a kept path is there already
  for (const std::string& path : kept_paths) {
    if (path != folder && below(path, folder)) kept[path] = UniqueFd(open(path.c_str(), O_PATH | O_CLOEXEC));
  }
  if (mount("tmpfs", folder.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,mode=0711") != 0) return false;
  for (auto& [path, what] : kept) {
    struct stat info;
    if (!what || stat(path.c_str(), &info) == 0) continue;  // it is not there, or within another
    const bool folder_wanted = fstat(what.get(), &info) == 0 && S_ISDIR(info.st_mode);
    if (!make_folders(folder, folder_wanted ? path : path.substr(0, path.rfind('/'))) || !show(what, path))
      return false;
  }
  return mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr) == 0;
}

std::string text_of(const char* path) {
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got; file && (got = read(file.get(), buffer, sizeof buffer)) > 0;) text.append(buffer, got);
  return text;
}

// Such a file of /proc as it is now, which is all that a program gets of it.
bool freeze(const char* path) {
  struct stat info;
  if (stat(path, &info) != 0) return true;
  const std::string text = text_of(path), copy = kAside + std::string(strrchr(path, '/'));
  const UniqueFd file(open(copy.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0444));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
         mount(copy.c_str(), path, nullptr, MS_BIND, nullptr) == 0;
}

bool freeze_facts() {
  if (mount("tmpfs", kAside, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4m,mode=0755") != 0) return false;
  const bool frozen = std::all_of(std::begin(kFrozen), std::end(kFrozen), freeze);
  return umount2(kAside, MNT_DETACH) == 0 && frozen;
}

// Who may not look into others' processes would find none there, and could bound no shell's memory.
bool sees_all() {
  __user_cap_header_struct who{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct has[2] = {};
  return syscall(__NR_capget, &who, has) == 0 && (has[0].effective & (1u << CAP_SYS_PTRACE)) != 0;
}

bool change_mounts(const NamespaceOptions& options) {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  // In which a program finds itself alone. Only root of the first user namespace may: without it others' numbers show.
  if (sees_all()) mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=4");
  if (!freeze_facts()) return false;
  MountAttr attributes{.set = kReadOnly | kNoSetuid, .clear = 0, .propagation = 0, .userns_fd = 0};
  if (syscall(__NR_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &attributes, sizeof attributes) != 0) return false;
  for (const std::string& folder : options.private_folders) {
    if (!open_to_all(folder, options.kept_paths)) return false;
  }
  for (const char* folder : kHidden) {
    const bool kept = std::any_of(options.kept_paths.begin(), options.kept_paths.end(),
                                  [folder](const std::string& path) { return below(path, folder); });
    if (!kept && is_directory(folder) && !below(options.scratch_parent, folder) && !hide(folder)) return false;
  }
  return true;
}

// The same in a process that then ends: what fails half-way must not have changed the supervisor.
bool can_enter(const NamespaceOptions& options, UserNamespace how) {
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    const bool mounted = unshare_all(how) && change_mounts(options) &&
                         (options.scratch_parent.empty() || mount("tmpfs", options.scratch_parent.c_str(), "tmpfs",
                                                                  MS_NOSUID | MS_NODEV, "size=4k") == 0);
    _exit(mounted ? 0 : 1);
  }
  int status = 1;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

}  // namespace

bool enter_namespaces(const NamespaceOptions& options) {
  // Root of a container may make users for programs, and no namespaces but in one of users.
  std::vector<UserNamespace> ways{UserNamespace::kNone};
  if (geteuid() == 0) ways.push_back(UserNamespace::kAllIds);
  if (!options.keep_users) ways.push_back(UserNamespace::kOwnId);
  for (const UserNamespace how : ways) {
    if (!can_enter(options, how)) continue;
    if (!unshare_all(how) || !change_mounts(options))
      throw std::system_error(errno, std::generic_category(), "unshare");
    return true;
  }
  return false;
}

bool hide_processes() {
  if (unshare(CLONE_NEWNS) != 0) return false;
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  const auto show_frozen = [](const char* path) {
    const std::string place = kAside + std::string(strrchr(path, '/'));
    const UniqueFd made(open(place.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0444));
    return made && mount(path, place.c_str(), nullptr, MS_BIND, nullptr) == 0;
  };
  const bool hidden = mount("tmpfs", kAside, "tmpfs", kFlags, "size=4k,mode=0555") == 0 &&
                      std::all_of(std::begin(kFrozen), std::end(kFrozen), show_frozen) &&
                      mount(nullptr, kAside, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | kFlags, nullptr) == 0 &&
                      mount(kAside, "/proc", nullptr, MS_MOVE, nullptr) == 0;
  if (!hidden) umount2(kAside, MNT_DETACH);  // some engine's rule: others' numbers show, as they do to an ordinary user
  return true;
}

void mount_scratch(const std::string& base, uint64_t bytes) {
  const std::string how = "mode=0711,nr_inodes=1m,size=" + std::to_string(bytes);
  if (mount("tmpfs", base.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOATIME, how.c_str()) != 0) {
    throw std::system_error(errno, std::generic_category(), "mount(" + base + ")");
  }
}

}  // namespace rocstar
