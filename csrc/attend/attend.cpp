#include "attend.h"

#include <cstring>
#include <limits>
#include <vector>

namespace rocstar {
namespace {

// One vector register where the machine has them this wide; the compiler splits it where not.
using Lanes = float __attribute__((vector_size(64)));
using IntLanes = std::int32_t __attribute__((vector_size(64)));
using BitLanes = std::uint32_t __attribute__((vector_size(64)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define ROCSTAR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ROCSTAR_CLONES
#endif
#define ROCSTAR_INLINE inline __attribute__((always_inline))

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

// Scores of G query heads against `length` tokens: scores[g][token] = scale * q_g . k_token.
template <int G>
ROCSTAR_INLINE void score(const float* queries, const float* keys, float* scores, std::int64_t padded,
                          const DecodeStep& step) {
  for (std::int64_t token = 0; token < padded; token += kLanes) {
    Lanes sums[G] = {};
    for (std::int64_t d = 0; d < step.size; ++d) {
      Lanes key;
      load(key, keys + d * step.capacity + token);
      for (int g = 0; g < G; ++g) sums[g] += queries[g * step.size + d] * key;
    }
    for (int g = 0; g < G; ++g) store(scores + g * step.capacity + token, sums[g] * step.scale);
  }
}

// Softmax without its division, in place; what lies behind `length` becomes 0. Returns the sum.
ROCSTAR_INLINE float exponentiate(float* scores, std::int64_t length, std::int64_t padded) {
  for (std::int64_t token = length; token < padded; ++token) scores[token] = -std::numeric_limits<float>::infinity();
  Lanes tops;
  load(tops, scores);
  for (std::int64_t token = kLanes; token < padded; token += kLanes) {
    Lanes x;
    load(x, scores + token);
    tops = x > tops ? x : tops;
  }
  float top = tops[0];
  for (int lane = 1; lane < kLanes; ++lane) top = tops[lane] > top ? tops[lane] : top;
  Lanes sums = {};
  for (std::int64_t token = 0; token < padded; token += kLanes) {
    Lanes x;
    load(x, scores + token);
    x -= top;
    exp_lanes(x);
    sums += x;
    store(scores + token, x);
  }
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum;
}

// out_g = sum over tokens of weight_g[token] * value[token] / sum_g.
template <int G>
ROCSTAR_INLINE void mix(const float* weights, const float* values, const float* sums, float* out, std::int64_t length,
                        const DecodeStep& step) {
  const std::int64_t size = step.size;
  std::int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) {
    Lanes even[G] = {}, odd[G] = {};
    std::int64_t token = 0;
    for (; token + 2 <= length; token += 2) {
      Lanes a, b;
      load(a, values + token * size + d);
      load(b, values + (token + 1) * size + d);
      for (int g = 0; g < G; ++g) {
        even[g] += weights[g * step.capacity + token] * a;
        odd[g] += weights[g * step.capacity + token + 1] * b;
      }
    }
    if (token < length) {
      Lanes a;
      load(a, values + token * size + d);
      for (int g = 0; g < G; ++g) even[g] += weights[g * step.capacity + token] * a;
    }
    for (int g = 0; g < G; ++g) store(out + g * size + d, (even[g] + odd[g]) / sums[g]);
  }
  for (; d < size; ++d) {
    for (int g = 0; g < G; ++g) {
      float total = 0;
      for (std::int64_t token = 0; token < length; ++token)
        total += weights[g * step.capacity + token] * values[token * size + d];
      out[g * size + d] = total / sums[g];
    }
  }
}

template <int G>
ROCSTAR_INLINE void attend_heads(const float* queries, const float* keys, const float* values, float* out,
                                 std::int64_t length, float* scores, const DecodeStep& step) {
  const std::int64_t padded = (length + kLanes - 1) / kLanes * kLanes;
  float sums[G];
  score<G>(queries, keys, scores, padded, step);
  for (int g = 0; g < G; ++g) sums[g] = exponentiate(scores + g * step.capacity, length, padded);
  mix<G>(scores, values, sums, out, length, step);
}

constexpr int kMostHeads = 4;  // whose sums fit into registers together

ROCSTAR_CLONES void attend_rows(const DecodeStep& step, std::int64_t begin, std::int64_t end, float* scores) {
  const std::int64_t group = step.heads / step.kv_heads, size = step.size, capacity = step.capacity;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t position = step.positions[row];
    for (std::int64_t head = 0; head < step.kv_heads; ++head) {
      float* keys = step.key_cache + (row * step.kv_heads + head) * size * capacity;
      float* values = step.value_cache + (row * step.kv_heads + head) * size * capacity;
      const float* new_key = step.keys + row * step.key_stride + head * size;
      for (std::int64_t d = 0; d < size; ++d) keys[d * capacity + position] = new_key[d];
      std::memcpy(values + position * size, step.values + row * step.value_stride + head * size,
                  static_cast<std::size_t>(size) * sizeof(float));
      const float* queries = step.queries + row * step.query_stride + head * group * size;
      float* out = step.out + (row * step.heads + head * group) * size;
      std::int64_t g = 0;
      for (; g + 4 <= group; g += 4)
        attend_heads<4>(queries + g * size, keys, values, out + g * size, position + 1, scores, step);
      for (; g + 2 <= group; g += 2)
        attend_heads<2>(queries + g * size, keys, values, out + g * size, position + 1, scores, step);
      for (; g < group; ++g)
        attend_heads<1>(queries + g * size, keys, values, out + g * size, position + 1, scores, step);
    }
  }
}

}  // namespace

void attend(const DecodeStep& step, std::int64_t begin, std::int64_t end) {
  std::vector<float> scores(static_cast<std::size_t>(kMostHeads * step.capacity));
  attend_rows(step, begin, end, scores.data());
}

}  // namespace rocstar
