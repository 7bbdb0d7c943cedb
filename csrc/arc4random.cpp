// Of the static C++ library, std::random_device asks the C library for this, which has it from 2.36 on; nothing here
// uses either. With it a wheel built on Debian 12 needs 2.35.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t drawn;
  if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) std::abort();
  return drawn;
}
