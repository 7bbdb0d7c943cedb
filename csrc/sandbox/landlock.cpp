#include "landlock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

// The numbers are the same on every architecture; old kernel headers lack them.
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444
#define __NR_landlock_add_rule 445
#define __NR_landlock_restrict_self 446
#endif

namespace rocstar {
namespace {

constexpr uint32_t kVersionFlag = 1;
constexpr uint32_t kRulePathBeneath = 1;
constexpr uint64_t kExecute = 1u << 0;
constexpr uint64_t kWriteFile = 1u << 1;
constexpr uint64_t kReadFile = 1u << 2;
constexpr uint64_t kReadDir = 1u << 3;
constexpr uint64_t kRemoveDir = 1u << 4;
constexpr uint64_t kRemoveFile = 1u << 5;
constexpr uint64_t kMakeDir = 1u << 7;
constexpr uint64_t kMakeFile = 1u << 8;
constexpr uint64_t kRefer = 1u << 13;
constexpr uint64_t kTruncate = 1u << 14;
// Not devices, sockets, pipes or links, and nothing to execute.
constexpr uint64_t kScratch =
    kWriteFile | kReadFile | kReadDir | kRemoveDir | kRemoveFile | kMakeDir | kMakeFile | kRefer | kTruncate;

// As in <linux/landlock.h>, whose older copies end after the first field.
struct RulesetAttr {
  uint64_t handled_fs;
  uint64_t handled_net;
  uint64_t scoped;
};

struct [[gnu::packed]] PathAttr {
  uint64_t allowed;
  int32_t parent_fd;
};

struct Ruleset {
  RulesetAttr attr;
  size_t size;
};

Ruleset ruleset_for(int abi) {
  uint64_t fs = (1u << 13) - 1;
  if (abi >= 2) fs |= 1u << 13;  // refer
  if (abi >= 3) fs |= 1u << 14;  // truncate
  if (abi >= 5) fs |= 1u << 15;  // ioctl on devices
  const uint64_t net = abi >= 4 ? 3 : 0;
  const uint64_t scoped = abi >= 6 ? 3 : 0;
  const size_t size = abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
  return {{fs, net, scoped}, size};
}

void allow(int ruleset, int file, const std::string& path, uint64_t rights) {
  const PathAttr attr{rights, file};
  if (syscall(__NR_landlock_add_rule, ruleset, kRulePathBeneath, &attr, 0) != 0) {
    throw std::system_error(errno, std::generic_category(), "landlock_add_rule(" + path + ")");
  }
}

void allow(int ruleset, const std::string& path, uint64_t rights) {
  const UniqueFd fd(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (fd) allow(ruleset, fd.get(), path, rights);
}

bool is_directory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

int landlock_abi() {
  const long abi = syscall(__NR_landlock_create_ruleset, nullptr, 0, kVersionFlag);
  return abi < 0 ? 0 : static_cast<int>(abi);
}

UniqueFd make_landlock_ruleset(const std::vector<std::string>& paths, const std::string& scratch) {
  return make_landlock_ruleset(Access{.readable = paths, .scratch = scratch});
}

UniqueFd make_landlock_ruleset(const Access& access) {
  const Ruleset wanted = ruleset_for(landlock_abi());
  UniqueFd ruleset(static_cast<int>(syscall(__NR_landlock_create_ruleset, &wanted.attr, wanted.size, 0)));
  if (!ruleset) throw std::system_error(errno, std::generic_category(), "landlock_create_ruleset");
  const auto reading = [](const std::string& path) { return kReadFile | (is_directory(path) ? kReadDir : 0); };
  for (const std::string& path : access.readable) allow(ruleset.get(), path, reading(path));
  for (const std::string& path : access.executable) allow(ruleset.get(), path, reading(path) | kExecute);
  for (const char* device : {"/dev/null", "/dev/full"}) allow(ruleset.get(), device, kReadFile | kWriteFile);
  if (!access.scratch.empty()) allow(ruleset.get(), access.scratch, kScratch & wanted.attr.handled_fs);
  if (access.program >= 0) allow(ruleset.get(), access.program, "program", kReadFile | kExecute);
  return ruleset;
}

int enter_landlock(int ruleset) { return syscall(__NR_landlock_restrict_self, ruleset, 0) == 0 ? 0 : errno; }

}  // namespace rocstar
