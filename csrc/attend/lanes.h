// Vectors of floats, and what is computed in them lane by lane. Whatever a lane holds never meets another one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ROCSTAR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ROCSTAR_CLONES
#endif
// What a clone calls is a part of it, or has clones itself: else it would be made for the oldest machine.
#define ROCSTAR_INLINE inline __attribute__((always_inline))

namespace rocstar {

inline constexpr std::int64_t kLanes = 16;

// One vector register where the machine has them this wide; the compiler splits it where not.
using Lanes = float __attribute__((vector_size(64)));
using IntLanes = std::int32_t __attribute__((vector_size(64)));
using BitLanes = std::uint32_t __attribute__((vector_size(64)));

ROCSTAR_INLINE void load(Lanes& to, const float* from) { std::memcpy(&to, from, sizeof to); }
ROCSTAR_INLINE void store(float* to, const Lanes& from) { std::memcpy(to, &from, sizeof from); }

// e^x for x <= 0: 2^n * p(r), |r| <= ln 2 / 2, relative error below 2e-7; 0 below -87.
ROCSTAR_INLINE void exp_lanes(Lanes& x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const IntLanes alive = ~(x < -87.0f);  // a NaN lives: broken weights must show
  const Lanes shifted = x * kLog2e + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = (x - n * kLn2High) - n * kLn2Low;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  BitLanes bits, exponent, mask;
  std::memcpy(&bits, &p, sizeof bits);
  std::memcpy(&exponent, &shifted, sizeof exponent);
  std::memcpy(&mask, &alive, sizeof mask);
  bits = (bits + (exponent << 23)) & mask;
  std::memcpy(&x, &bits, sizeof x);
}

ROCSTAR_INLINE float largest(const Lanes& x) {
  float top = x[0];
  for (int lane = 1; lane < kLanes; ++lane) top = x[lane] > top ? x[lane] : top;
  return top;
}

ROCSTAR_INLINE float sum_of(const Lanes& x) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
  return sum;
}

}  // namespace rocstar
