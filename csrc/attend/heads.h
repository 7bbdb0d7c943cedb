// Attention of one token's query heads over the slot that it belongs to. For attend.cpp and forward.cpp.
#pragma once

#include <limits>

#include "lanes.h"

namespace rocstar {

// A slot's cache of one key-value head: keys [size][capacity], values [capacity][size].
struct SlotShape {
  std::int64_t heads;  // a multiple of kv_heads
  std::int64_t kv_heads;
  std::int64_t size;
  std::int64_t capacity;  // a multiple of kLanes
  float scale;
};

inline constexpr int kMostHeads = 4;  // whose sums fit into registers together

// Scores of G query heads against the first tokens: scores[g][token] = scale * q_g . k_token.
template <int G>
ROCSTAR_INLINE void score(const float* queries, const float* keys, float* scores, std::int64_t padded,
                          const SlotShape& shape) {
  for (std::int64_t token = 0; token < padded; token += kLanes) {
    Lanes sums[G] = {};
    for (std::int64_t d = 0; d < shape.size; ++d) {
      Lanes key;
      load(key, keys + d * shape.capacity + token);
      for (int g = 0; g < G; ++g) sums[g] += queries[g * shape.size + d] * key;
    }
    for (int g = 0; g < G; ++g) store(scores + g * shape.capacity + token, sums[g] * shape.scale);
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
  const float top = largest(tops);
  Lanes sums = {};
  for (std::int64_t token = 0; token < padded; token += kLanes) {
    Lanes x;
    load(x, scores + token);
    x -= top;
    exp_lanes(x);
    sums += x;
    store(scores + token, x);
  }
  return sum_of(sums);
}

// out_g = sum over tokens of weight_g[token] * value[token] / sum_g.
template <int G>
ROCSTAR_INLINE void mix(const float* weights, const float* values, const float* sums, float* out, std::int64_t length,
                        const SlotShape& shape) {
  const std::int64_t size = shape.size;
  std::int64_t d = 0;
  for (; d + kLanes <= size; d += kLanes) {
    Lanes even[G] = {}, odd[G] = {};
    std::int64_t token = 0;
    for (; token + 2 <= length; token += 2) {
      Lanes a, b;
      load(a, values + token * size + d);
      load(b, values + (token + 1) * size + d);
      for (int g = 0; g < G; ++g) {
        even[g] += weights[g * shape.capacity + token] * a;
        odd[g] += weights[g * shape.capacity + token + 1] * b;
      }
    }
    if (token < length) {
      Lanes a;
      load(a, values + token * size + d);
      for (int g = 0; g < G; ++g) even[g] += weights[g * shape.capacity + token] * a;
    }
    for (int g = 0; g < G; ++g) store(out + g * size + d, (even[g] + odd[g]) / sums[g]);
  }
  for (; d < size; ++d) {
    for (int g = 0; g < G; ++g) {
      float total = 0;
      for (std::int64_t token = 0; token < length; ++token)
        total += weights[g * shape.capacity + token] * values[token * size + d];
      out[g * size + d] = total / sums[g];
    }
  }
}

template <int G>
ROCSTAR_INLINE void attend_heads(const float* queries, const float* keys, const float* values, float* out,
                                 std::int64_t length, float* scores, const SlotShape& shape) {
  const std::int64_t padded = (length + kLanes - 1) / kLanes * kLanes;
  float sums[G];
  score<G>(queries, keys, scores, padded, shape);
  for (int g = 0; g < G; ++g) sums[g] = exponentiate(scores + g * shape.capacity, length, padded);
  mix<G>(scores, values, sums, out, length, shape);
}

// Of one token, over the first `length` tokens of its slot: queries and out [head][size], the slot's keys and values
// with all their heads, room for kMostHeads * capacity scores.
ROCSTAR_INLINE void attend_slot(const float* queries, const float* keys, const float* values, float* out,
                                std::int64_t length, float* scores, const SlotShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads, size = shape.size;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    const float* const own_keys = keys + head * size * shape.capacity;
    const float* const own_values = values + head * size * shape.capacity;
    const float* const own_queries = queries + head * group * size;
    float* const own_out = out + head * group * size;
    std::int64_t g = 0;
    for (; g + 4 <= group; g += 4)
      attend_heads<4>(own_queries + g * size, own_keys, own_values, own_out + g * size, length, scores, shape);
    for (; g + 2 <= group; g += 2)
      attend_heads<2>(own_queries + g * size, own_keys, own_values, own_out + g * size, length, scores, shape);
    for (; g < group; ++g)
      attend_heads<1>(own_queries + g * size, own_keys, own_values, own_out + g * size, length, scores, shape);
  }
}

}  // namespace rocstar
