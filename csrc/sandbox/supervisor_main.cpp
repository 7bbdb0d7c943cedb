// The supervisor as a program: rocstar/sandbox/_supervisor. Started by the pool (rocstar/sandbox/process.py), which
// gives everything on the command line: see `usage`.
#include <fcntl.h>
#include <getopt.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "guard.h"
#include "priority.h"
#include "supervise.h"
#include "tiers.h"
#include "zygote.h"

namespace {

constexpr const char* kUsage =
    "usage: _supervisor --fd N --parent PID --flavour NAME... [--replicas N] [--max-live N] [--max-sessions N]\n"
    "    [--memory-bytes N] [--lease-us N] [--scratch-parent DIR] [--scratch-bytes N] [--readable PATH...]\n"
    "    [--keep PATH...] [--private FOLDER...] [--without LAYER...] [--allow-no-isolation] [--tool PATH...]\n"
    "    [--library PATH...] [--loader PATH...] [--shell-tool PATH...] [--compile-wall-us N] [--nice N]\n"
    "    [--zygote-start-us N] [--warm-before] [--preload LIBRARY] -- ZYGOTE COMMAND...\n";

struct Arguments {
  rocstar::SupervisorOptions supervisor;
  rocstar::TierOptions tiers;
  pid_t parent = 0;
};

[[noreturn]] void refuse() {
  std::fputs(kUsage, stderr);
  std::exit(2);
}

uint64_t number(const char* text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') refuse();
  return value;
}

Arguments parse(int argc, char** argv) {
  static const option kOptions[] = {{"fd", required_argument, nullptr, 'f'},
                                    {"parent", required_argument, nullptr, 'p'},
                                    {"flavour", required_argument, nullptr, 'F'},
                                    {"replicas", required_argument, nullptr, 'r'},
                                    {"max-live", required_argument, nullptr, 'l'},
                                    {"max-sessions", required_argument, nullptr, 's'},
                                    {"memory-bytes", required_argument, nullptr, 'm'},
                                    {"lease-us", required_argument, nullptr, 'e'},
                                    {"scratch-parent", required_argument, nullptr, 'S'},
                                    {"readable", required_argument, nullptr, 'R'},
                                    {"private", required_argument, nullptr, 'W'},
                                    {"without", required_argument, nullptr, 'w'},
                                    {"keep", required_argument, nullptr, 'k'},
                                    {"scratch-bytes", required_argument, nullptr, 'B'},
                                    {"allow-no-isolation", no_argument, nullptr, 'n'},
                                    {"tool", required_argument, nullptr, 't'},
                                    {"library", required_argument, nullptr, 'L'},
                                    {"loader", required_argument, nullptr, 'D'},
                                    {"shell-tool", required_argument, nullptr, 'T'},
                                    {"compile-wall-us", required_argument, nullptr, 'C'},
                                    {"nice", required_argument, nullptr, 'N'},
                                    {"zygote-start-us", required_argument, nullptr, 'Z'},
                                    {"warm-before", no_argument, nullptr, 'b'},
                                    {"preload", required_argument, nullptr, 'P'},
                                    {nullptr, 0, nullptr, 0}};
  Arguments given;
  rocstar::SupervisorOptions& supervisor = given.supervisor;
  for (int option; (option = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (option) {
      case 'f':
        supervisor.client_fd = static_cast<int>(number(optarg));
        break;
      case 'p':
        given.parent = static_cast<pid_t>(number(optarg));
        break;
      case 'F':
        supervisor.flavours.emplace_back(optarg);
        break;
      case 'r':
        supervisor.replicas = static_cast<uint32_t>(number(optarg));
        break;
      case 'l':
        supervisor.max_live = static_cast<uint32_t>(number(optarg));
        break;
      case 's':
        supervisor.max_sessions = static_cast<uint32_t>(number(optarg));
        break;
      case 'm':
        supervisor.memory_bytes = number(optarg);
        break;
      case 'e':
        supervisor.lease_us = number(optarg);
        break;
      case 'S':
        given.tiers.scratch_parent = optarg;
        break;
      case 'R':
        given.tiers.readable_paths.emplace_back(optarg);
        break;
      case 'W':
        given.tiers.private_folders.emplace_back(optarg);
        break;
      case 'w':
        given.tiers.without.insert(optarg);
        break;
      case 'k':
        given.tiers.kept_paths.emplace_back(optarg);
        break;
      case 'B':
        given.tiers.scratch_bytes = number(optarg);
        break;
      case 'n':
        given.tiers.allow_no_isolation = true;
        break;
      case 't':
        supervisor.home.tool_paths.emplace_back(optarg);
        break;
      case 'L':
        supervisor.home.library_paths.emplace_back(optarg);
        break;
      case 'D':
        supervisor.home.loader_paths.emplace_back(optarg);
        break;
      case 'T':
        supervisor.home.shell_paths.emplace_back(optarg);
        break;
      case 'C':
        supervisor.compile_wall_us = number(optarg);
        break;
      case 'N':
        supervisor.nice = static_cast<int32_t>(number(optarg));
        break;
      case 'Z':
        supervisor.zygote_start_us = number(optarg);
        break;
      case 'b':
        supervisor.warm_before = true;
        break;
      case 'P':
        supervisor.preload = optarg;
        break;
      default:
        refuse();
    }
  }
  for (int i = optind; i < argc; ++i) supervisor.zygote_command.emplace_back(argv[i]);
  if (supervisor.client_fd < 0 || supervisor.flavours.empty() || supervisor.zygote_command.empty()) refuse();
  return given;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments given = parse(argc, argv);
  if (!rocstar::die_with_parent(given.parent)) return 0;
  if (chdir("/") != 0) return 1;
  umask(022);  // programs, as users of their own, go through folders that are made here
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {  // a session has half a dozen
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  setsid();  // a terminal's Ctrl-C is the pool's to handle: it closes the socket when it is done
  if (given.supervisor.nice > 0) rocstar::raise_priority();
  rocstar::UniqueFd proc(open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  given.supervisor.proc = proc.get();
  try {
    if (!rocstar::enter_tier(given.tiers, given.supervisor)) return 3;
    // A user namespace of one's own has taken the death signal back.
    if (!rocstar::die_with_parent(given.parent)) return 0;
    rocstar::Supervisor supervisor(std::move(given.supervisor));
    proc.reset();
    rocstar::confine_supervisor();
    supervisor.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rocstar supervisor: %s\n", error.what());
    return 1;
  }
  return 0;
}
