#include "guard.h"

#include <elf.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "seccomp.h"

// Of this program, made by the linker.
extern "C" __attribute__((visibility("hidden"))) const Elf64_Dyn _DYNAMIC[];

namespace rocstar {

void keep_capabilities(std::initializer_list<int> kept) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    throw std::system_error(errno, std::generic_category(), "prctl(PR_SET_NO_NEW_PRIVS)");
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  // Without CAP_SETPCAP the bounding set stays as it is; no_new_privs keeps exec from making use of it.
  for (int number = 0; prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; ++number) {
    if (std::find(kept.begin(), kept.end(), number) == kept.end()) prctl(PR_CAPBSET_DROP, number, 0, 0, 0);
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{}, wanted[2]{};
  if (syscall(SYS_capget, &header, sets) != 0) throw std::system_error(errno, std::generic_category(), "capget");
  for (const int number : kept) wanted[number / 32].permitted |= 1U << number % 32;
  for (int half = 0; half < 2; ++half) {
    sets[half].permitted &= wanted[half].permitted;
    sets[half].effective &= wanted[half].permitted;
    sets[half].inheritable = 0;
  }
  if (syscall(SYS_capset, &header, sets) != 0) throw std::system_error(errno, std::generic_category(), "capset");
}

void confine_supervisor() {
  keep_capabilities(kSupervisorKeeps);
#if !defined(ROCSTAR_SANITIZED)  // a sanitizer's runtime needs calls of its own
  if (!seccomp_available()) return;
  const SeccompFilter filter(supervisor_policy(), newest_known_syscall());
  errno = filter.install(static_cast<uint32_t>(getpid()));
  if (errno != 0) throw std::system_error(errno, std::generic_category(), "seccomp of the supervisor");
#endif
}

std::string built_with() {
  std::string found;
  const auto add = [&found](const char* name) { found.append(found.empty() ? "" : "+").append(name); };
#if defined(__SSP_STRONG__) || defined(__SSP_ALL__)
  add("stack_protector");
#endif
#if defined(_FORTIFY_SOURCE) && _FORTIFY_SOURCE >= 2
  add("fortify");
#endif
#if defined(_GLIBCXX_ASSERTIONS)
  add("assertions");
#endif
#if defined(__CET__) || defined(__ARM_FEATURE_BTI_DEFAULT)
  add("control_flow");
#endif
  for (const Elf64_Dyn* entry = _DYNAMIC; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag != DT_FLAGS_1) continue;
    if ((entry->d_un.d_val & DF_1_PIE) != 0) add("pie");
    if ((entry->d_un.d_val & DF_1_NOW) != 0) add("relro_now");
  }
  return found;
}

}  // namespace rocstar
