// Asks the filters as the kernel would, without installing them: by the numbers of the machine that this is built for,
// from its tables and not from its headers.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "check.h"
#include "seccomp.h"

using namespace rocstar;

namespace {

constexpr uint32_t kAllowed = SECCOMP_RET_ALLOW, kKilled = SECCOMP_RET_KILL_PROCESS;
constexpr uint32_t fails(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

#if defined(__x86_64__)
constexpr uint32_t kHere = 0xC000003E, kElsewhere[] = {0x40000003, 0xC00000B7};
constexpr int pick(int x86_64, int) { return x86_64; }
#else
constexpr uint32_t kHere = 0xC00000B7, kElsewhere[] = {0x40000028, 0xC000003E};
constexpr int pick(int, int arm64) { return arm64; }
#endif

uint32_t word_at(const seccomp_data& data, uint32_t offset) {
  uint32_t word;
  CHECK(offset + sizeof word <= sizeof data);
  std::memcpy(&word, reinterpret_cast<const char*>(&data) + offset, sizeof word);
  return word;
}

// The verdict of a program that uses what seccomp.cpp does of the machine that the kernel has for them.
uint32_t run(const std::vector<sock_filter>& program, const seccomp_data& data) {
  uint32_t accumulator = 0;
  for (size_t at = 0; at < program.size(); ++at) {
    const auto& [code, when_true, when_false, k] = program[at];
    switch (code) {
      case BPF_LD | BPF_W | BPF_ABS:
        accumulator = word_at(data, k);
        break;
      case BPF_ALU | BPF_AND | BPF_K:
        accumulator &= k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        at += accumulator == k ? when_true : when_false;
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        at += accumulator >= k ? when_true : when_false;
        break;
      case BPF_JMP | BPF_JA:
        at += k;
        break;
      case BPF_RET | BPF_K:
        return k;
      default:
        CHECK(!"an instruction that this does not know");
    }
  }
  CHECK(!"a filter without an end");
  return 0;
}

struct Call {
  int number;
  uint32_t verdict;
  std::array<uint64_t, 6> args{};
};

uint32_t verdict_of(const PolicyOptions& options, const Call& call, uint32_t architecture = kHere) {
  seccomp_data data{.nr = call.number, .arch = architecture, .instruction_pointer = 0, .args = {}};
  std::copy(call.args.begin(), call.args.end(), data.args);
  return run(SeccompFilter(child_policy(options), newest_known_syscall()).program(), data);
}

void check_all(const PolicyOptions& options, const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    const uint32_t found = verdict_of(options, call);
    if (found != call.verdict) std::fprintf(stderr, "call %d: %x, not %x\n", call.number, found, call.verdict);
    CHECK(found == call.verdict);
  }
}

const std::vector<Call> kAlways{
    {pick(0, 63), kAllowed},         // read
    {pick(1, 64), kAllowed},         // write
    {pick(3, 57), kAllowed},         // close
    {pick(8, 62), kAllowed},         // lseek
    {pick(39, 172), kAllowed},       // getpid
    {pick(271, 73), kAllowed},       // ppoll
    {pick(231, 94), kAllowed},       // exit_group
    {pick(318, 278), kAllowed},      // getrandom
    {pick(101, 117), kKilled},       // ptrace
    {pick(310, 270), kKilled},       // process_vm_readv
    {pick(272, 97), kKilled},        // unshare
    {pick(308, 268), kKilled},       // setns
    {pick(165, 40), kKilled},        // mount
    {pick(321, 280), kKilled},       // bpf
    {pick(298, 241), kKilled},       // perf_event_open
    {pick(323, 282), kKilled},       // userfaultfd
    {pick(250, 219), kKilled},       // keyctl
    {pick(246, 104), kKilled},       // kexec_load
    {pick(320, 294), kKilled},       // kexec_file_load
    {425, kKilled},                  // io_uring_setup
    {pick(59, 221), fails(EPERM)},   // execve
    {pick(322, 281), fails(EPERM)},  // execveat
    {pick(41, 198), fails(EPERM)},   // socket
    {pick(42, 203), fails(EPERM)},   // connect
    {pick(105, 146), fails(EPERM)},  // setuid
    {435, fails(ENOSYS)},            // clone3
    {437, fails(ENOSYS)},            // openat2
    {9999, fails(ENOSYS)},
    {pick(56, 220), fails(EPERM), {SIGCHLD}},  // clone: a process, a thread
    {pick(56, 220), kAllowed, {CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD}},
    {pick(202, 98), kAllowed, {0, FUTEX_WAKE | FUTEX_PRIVATE_FLAG}},
    {pick(202, 98), fails(EAGAIN), {0, FUTEX_WAKE}},
    {pick(202, 98), fails(EAGAIN), {0, FUTEX_WAIT}},
    {pick(262, 79), kAllowed},      // newfstatat
    {pick(265, 37), fails(EROFS)},  // linkat
};

void a_verdict_is_by_this_machines_numbers() {
  check_all({}, kAlways);
  check_all({}, {{pick(257, 56), kAllowed, {0, 0, O_RDONLY}},                // openat
                 {pick(257, 56), fails(EROFS), {0, 0, O_WRONLY | O_CREAT}},  // the same
                 {pick(264, 38), fails(EROFS)},                              // renameat
                 {pick(316, 276), fails(EROFS)},                             // renameat2
                 {pick(258, 34), fails(EROFS)}});                            // mkdirat
}

// What C libraries call for rename, mkdir, unlink, truncate.
void a_scratch_directory_can_be_changed() {
  check_all({.scratch = true, .truncate = true}, {{pick(257, 56), kAllowed, {0, 0, O_WRONLY | O_CREAT}},
                                                  {pick(264, 38), kAllowed},
                                                  {pick(316, 276), kAllowed},
                                                  {pick(316, 276), fails(EINVAL), {0, 0, 0, 0, 2}},
                                                  {pick(258, 34), kAllowed},
                                                  {pick(263, 35), kAllowed},
                                                  {pick(76, 45), kAllowed},
                                                  {pick(77, 46), kAllowed},
                                                  {pick(265, 37), fails(EPERM)}});
}

void a_shell_starts_others_and_keeps_its_lifeline() {
  check_all({.scratch = true, .shell = true}, {{pick(59, 221), kAllowed},
                                               {pick(56, 220), kAllowed, {SIGCHLD}},
                                               {pick(3, 57), fails(EBADF), {250}},
                                               {pick(101, 117), kKilled}});
}

void another_architectures_calls_kill() {
  for (const uint32_t architecture : kElsewhere) CHECK(verdict_of({}, {0, kKilled}, architecture) == kKilled);
  const uint32_t x32 = verdict_of({}, {0x40000000, kKilled});
  CHECK(x32 == (kHere == 0xC000003E ? kKilled : fails(ENOSYS)));
}

}  // namespace

int main() {
  a_verdict_is_by_this_machines_numbers();
  a_scratch_directory_can_be_changed();
  a_shell_starts_others_and_keeps_its_lifeline();
  another_architectures_calls_kill();
}
