#include "tiers.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <stdexcept>

#include "guard.h"
#include "landlock.h"
#include "namespaces.h"
#include "process.h"
#include "seccomp.h"
#include "seccomp_notify.h"

namespace rocstar {
namespace {

// How much memory anybody has asked for, to the page. Where namespaces can be had it is frozen (namespaces.h).
constexpr const char* kTelling = "/proc/meminfo";

constexpr uint32_t kMostPools = 256, kUsersOfPool = 1 << 14;
// An ordinary user's containers have 65,536 users, which end below the usual first one.
constexpr uint32_t kFirstOfFew = 1 << 15;

// A user namespace may have no such uid, and a container may lack the capability, or that to end who has become
// another: only trying tells.
bool can_become(uint32_t uid) {
  if (geteuid() != 0) return false;
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0)
    _exit(setgroups(0, nullptr) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0 ? 0 : 1);
  siginfo_t info;
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0) fail("waitid");
  const bool can_end = kill(pid, 0) == 0;
  int status = 1;
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  return status == 0 && can_end;
}

// The directory of a program is its user's, and is cleared by us.
bool can_keep_house_for(uint32_t uid, const std::string& base) {
  const std::string path = base + "/trial";
  if (mkdir(path.c_str(), 0700) != 0) fail("mkdir(trial)");
  bool can = chown(path.c_str(), uid, uid) == 0;
  const UniqueFd directory(can ? open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1);
  can = directory && futimens(directory.get(), nullptr) == 0 && mkdirat(directory.get(), "inner", 0700) == 0 &&
        unlinkat(directory.get(), "inner", AT_REMOVEDIR) == 0;
  if (rmdir(path.c_str()) != 0) fail("rmdir(trial)");
  return can;
}

// A user namespace may end among a pool's.
bool can_become_all(uint32_t first_uid) { return can_become(first_uid) && can_become(first_uid + kUsersOfPool - 1); }

// What folders lie in whose owner is root and that nobody else may write to. The second is for a read-only /run.
constexpr const char* kClaims[] = {"/run/rocstar", "/var/lib/rocstar"};

// Throws where the folder is not root's alone: who can write there could take all users away from our pools.
UniqueFd open_claims(const char* path) {
  const bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
  UniqueFd folder(made ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1);
  struct stat info;
  if (!made || access(path, W_OK) != 0) return UniqueFd();  // there is none, or on a file system that is read-only
  if (folder && fstat(folder.get(), &info) == 0 && info.st_uid == 0 && (info.st_mode & 077) == 0) return folder;
  throw std::runtime_error(
      std::string(path) +
      " is no folder of root's that is closed to all others, so users cannot be claimed there; remove it");
}

// The kernel counts processes, pending signals and locked memory by user: pools with the same users would take them
// from each other. A pool's claim is a lock on a file, which the kernel takes back when the pool's process ends.
std::shared_ptr<UniqueFd> claim_users(uint32_t& first_uid) {
  UniqueFd folder;
  for (const char* path : kClaims) {
    if (!folder) folder = open_claims(path);
  }
  for (uint32_t pool = 0; folder && pool < kMostPools; ++pool) {
    const std::string name = "users." + std::to_string(pool);
    auto claim =
        std::make_shared<UniqueFd>(openat(folder.get(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!*claim) fail("open of a claim on users");
    if (flock(claim->get(), LOCK_EX | LOCK_NB) == 0) {
      first_uid += pool * kUsersOfPool;
      return claim;
    }
    if (errno != EWOULDBLOCK) fail("flock of a claim on users");
  }
  return nullptr;  // nowhere to claim them, or as many pools as nobody has: the first one's users are shared
}

// Where Python lies may be closed to all but its owner, or a part of it: again only trying tells.
bool can_read_as(uint32_t uid, const std::vector<std::string>& paths) {
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    std::vector<bool> there;
    struct stat info;
    for (const std::string& path : paths) there.push_back(stat(path.c_str(), &info) == 0);
    bool all = setgroups(0, nullptr) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0;
    for (size_t i = 0; i < paths.size() && all; ++i) {
      all = !there[i] || UniqueFd(open(paths[i].c_str(), O_RDONLY | O_CLOEXEC));
    }
    _exit(all ? 0 : 1);
  }
  int status = 1;
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  return status == 0;
}

bool isolate(const TierOptions& options, const std::string& base, bool open_private, bool keep_users) {
  NamespaceOptions wanted{.scratch_parent = base.empty() ? "" : options.scratch_parent,
                          .kept_paths = options.readable_paths,
                          .keep_users = keep_users};
  if (open_private) wanted.private_folders = options.private_folders;
  wanted.kept_paths.insert(wanted.kept_paths.end(), options.kept_paths.begin(), options.kept_paths.end());
  if (!enter_namespaces(wanted)) return false;
  if (!base.empty()) mount_scratch(base, options.scratch_bytes);
  return true;
}

// Some packages write while they are imported (matplotlib its fonts).
std::string make_zygote_directory(const std::string& base) {
  std::string path = base + "/zygotes";
  if (mkdir(path.c_str(), 0700) != 0) fail("mkdir(zygotes)");
  return path;
}

// What zygotes hold, and what children copy of it, comes on top of what programs may take.
constexpr uint64_t kOwnBytes = 2ull << 30;

bool enter_cgroup(SupervisorOptions& supervisor) {
  std::optional<Cgroup> made = Cgroup::enter(supervisor.memory_bytes + kOwnBytes);
  if (made) supervisor.cgroup = std::make_shared<Cgroup>(std::move(*made));
  return supervisor.cgroup != nullptr;
}

bool refuse(const SupervisorOptions& supervisor, const std::string& why) {
  std::string bytes;
  append_json(bytes, FrameType::kFatal, "{\"kind\": \"no_isolation\", \"message\": \"" + why + "\"}");
  send(supervisor.client_fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return false;
}

}  // namespace

bool enter_tier(const TierOptions& options, SupervisorOptions& supervisor) {
  const auto wanted = [&options](const char* layer) { return !options.without.contains(layer); };
  const bool seccomp = wanted("seccomp") && seccomp_available();
  const bool landlock = wanted("landlock") && landlock_abi() > 0;
  if (!can_become_all(supervisor.home.first_uid)) supervisor.home.first_uid = kFirstOfFew;
  uint32_t own_users = supervisor.home.first_uid;
  try {
    if (wanted("uid") && geteuid() == 0) supervisor.users = claim_users(own_users);
  } catch (const std::runtime_error& error) {
    return refuse(supervisor, error.what());
  }
  // A user namespace may end below them: rather the first pool's users than none.
  const bool own = supervisor.users != nullptr && can_become_all(own_users);
  if (own) supervisor.home.first_uid = own_users;
  const bool may_uid = wanted("uid") && can_become(supervisor.home.first_uid);
  const bool notify = seccomp && wanted("notify") && notify_available();
  const bool scratch = landlock && notify && wanted("scratch") && !options.scratch_parent.empty();
  const bool uid_for_certain = may_uid && can_read_as(supervisor.home.first_uid, options.readable_paths);
  const bool isolated = seccomp && (landlock || uid_for_certain);
  if (!isolated && !options.allow_no_isolation) {
    const std::string lacks =
        seccomp ? "neither Landlock nor a user id per program can be had here" : "this kernel offers no seccomp filter";
    return refuse(supervisor, lacks +
                                  ", so programs could do what this user can; run `rocstar sandbox doctor` for the "
                                  "fix, or accept it with allow_no_isolation=True");
  }
  supervisor.home.landlock = landlock;
  supervisor.home.scratch_bytes = options.scratch_bytes;
  supervisor.home.readable_paths = options.readable_paths;
  const std::string base = options.scratch_parent.empty() ? "" : make_scratch_base(options.scratch_parent);
  if (scratch) supervisor.home.base = base;
  // Before the mounts become read-only.
  const bool cgroup = wanted("cgroup") && enter_cgroup(supervisor);
  // Rather without what opens a private folder than without all the rest.
  const bool opens = may_uid && !uid_for_certain && !options.private_folders.empty();
  const bool namespaces =
      isolated && wanted("namespaces") &&
      ((opens && isolate(options, base, true, false)) || isolate(options, base, false, uid_for_certain));
  if (!namespaces) {
    std::erase(supervisor.home.readable_paths, kTelling);
    std::erase(supervisor.home.library_paths, kTelling);
  }
  const bool houses = !scratch || (may_uid && can_keep_house_for(supervisor.home.first_uid, base));
  const bool uid =
      houses && (uid_for_certain || (may_uid && can_read_as(supervisor.home.first_uid, options.readable_paths)));
  supervisor.home.slot_uid = uid;
  if (!base.empty()) supervisor.zygote_directory = make_zygote_directory(base);
  std::string names = "nnp+rlimits";
  if (landlock) names += "+landlock";
  if (seccomp) names += "+seccomp";
  if (uid) names += own ? "+uid" : "+uid+shared_users";
  if (namespaces) names += "+namespaces";
  if (cgroup) names += "+cgroup";
  const std::string tier = !isolated ? "none" : namespaces ? "B" : "A";
  std::string layers = "--layers=";
  if (seccomp) layers += "seccomp,";
  if (notify) layers += "notify,";
  if (!supervisor.home.base.empty()) layers += "scratch,";
  if (landlock_abi() >= 3) layers += "truncate,";
  if (namespaces) layers += "namespaces,";
  if (notify && !uid) layers += "threads,";  // else the kernel counts a program's own user's
  supervisor.zygote_command.push_back(layers);
  supervisor.hello_json = "{\"isolation\": \"" + names + "\", \"tier\": \"" + tier + "\", \"scratch\": \"" + base +
                          "\", \"built\": \"" + built_with() + "\", \"branch\": " + (notify ? "true" : "false") +
                          ", \"files\": " + (supervisor.home.base.empty() ? "false" : "true") + "}";
  return true;
}

}  // namespace rocstar
