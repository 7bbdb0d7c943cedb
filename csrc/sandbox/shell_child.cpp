#include "shell_child.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

namespace rocstar {
namespace {

constexpr char kPackMark = '\xff';
constexpr uint32_t kWantsDisplays = 1u << 31;
constexpr int kNoFilesExit = 1, kNoProgramExit = 2;  // as the other flavours, and as bash

// What of a pack is not read yet.
class Pack {
 public:
  explicit Pack(std::string_view bytes) : rest_(bytes) {}

  std::optional<std::string_view> take(uint64_t count) {
    if (count > rest_.size()) return std::nullopt;
    const std::string_view head = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return head;
  }

  template <typename T>
  std::optional<T> number() {
    const auto bytes = take(sizeof(T));
    if (!bytes) return std::nullopt;
    T value;
    std::memcpy(&value, bytes->data(), sizeof value);
    return value;
  }

  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

int make_folders(const std::string& name) {
  for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
    if (mkdir(name.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

int write_file(const std::string& name, std::string_view content) {
  if (const int error = make_folders(name)) return error;
  const UniqueFd file(open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return errno;
  while (!content.empty()) {
    const ssize_t n = write(file.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return errno;
    content.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

[[noreturn]] void say_and_exit(const std::string& text, int code) {
  [[maybe_unused]] const ssize_t said = write(STDERR_FILENO, text.data(), text.size());
  _exit(code);
}

[[noreturn]] void become_bash(const std::string& bash, const std::string& program, const std::string& preload) {
  Environment environment(preload);
  std::string own[] = {"bash", "-c", program, "bash"};
  char* const arguments[] = {own[0].data(), own[1].data(), own[2].data(), own[3].data(), nullptr};
  if (const int error = die_with_supervisor()) give_up(error);
  // Its copy, the lifeline, stays: nothing can be written there, so what the supervisor reads are words of ours.
  if (fcntl(kControlFd, F_SETFD, FD_CLOEXEC) != 0) give_up(errno);
  restore_signals();
  execve(bash.c_str(), arguments, environment.words());
  give_up(errno);
}

}  // namespace

int unpack_files(std::string_view& code) {
  if (code.empty() || code.front() != kPackMark) return 0;
  Pack pack(code.substr(1));
  const auto number = pack.number<uint32_t>();
  if (!number) return EINVAL;
  for (uint32_t left = *number & ~kWantsDisplays; left > 0; --left) {
    const auto name_bytes = pack.number<uint32_t>();
    const auto content_bytes = pack.number<uint64_t>();
    const auto name = name_bytes ? pack.take(*name_bytes) : std::nullopt;
    const auto content = content_bytes ? pack.take(*content_bytes) : std::nullopt;
    if (!name || !content) return EINVAL;
    if (const int error = write_file(std::string(*name), *content)) return error;
  }
  code = pack.rest();
  return 0;
}

int run_shell(Child& child, const std::string& bash, const std::string& preload) {
  const std::optional<Cell> cell = child.next_cell();
  if (!cell) return 0;
  std::string_view code = cell->code;
  if (const int error = unpack_files(code)) {
    say_and_exit(std::string("the files of this call cannot be written: ") + std::strerror(error) + "\n", kNoFilesExit);
  }
  if (code.find('\0') != std::string_view::npos) {
    say_and_exit("bash: the program has a NUL character\n", kNoProgramExit);
  }
  become_bash(bash, std::string(code), preload);
}

SeccompFilter& shell_filter(bool truncate) {
  static SeccompFilter shell(child_policy({.scratch = true, .truncate = truncate, .shell = true}),
                             newest_known_syscall());
  return shell;
}

}  // namespace rocstar
