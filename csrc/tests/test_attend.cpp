#include "attend.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

namespace {

using Floats = std::vector<float>;

Floats random_floats(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  Floats made(static_cast<std::size_t>(count));
  for (float& x : made) x = normal(random);
  return made;
}

struct Shape {
  std::int64_t rows, heads, kv_heads, size, capacity;
};

// The definition, in double: softmax of the scaled products, over the tokens up to the row's position.
double expected(const Shape& s, const Floats& queries, const Floats& keys, const Floats& values, std::int64_t row,
                std::int64_t head, std::int64_t d, std::int64_t position, double scale) {
  const std::int64_t kv = (s.rows - 1 - row) * s.kv_heads + head / (s.heads / s.kv_heads);
  Floats::size_type query = static_cast<std::size_t>((row * s.heads + head) * s.size);
  double sum = 0, total = 0, top = -1e300;
  std::vector<double> scores;
  for (std::int64_t token = 0; token <= position; ++token) {
    double score = 0;
    for (std::int64_t i = 0; i < s.size; ++i)
      score += double{queries[query + static_cast<std::size_t>(i)]} *
               double{keys[static_cast<std::size_t>((kv * s.size + i) * s.capacity + token)]};
    scores.push_back(score * scale);
    top = std::max(top, scores.back());
  }
  for (std::int64_t token = 0; token <= position; ++token) {
    const double weight = std::exp(scores[static_cast<std::size_t>(token)] - top);
    sum += weight;
    total += weight * double{values[static_cast<std::size_t>((kv * s.capacity + token) * s.size + d)]};
  }
  return total / sum;
}

void rows_attend_to_their_own_tokens(const Shape& s, float spread) {
  std::mt19937 random(7);
  Floats queries = random_floats(random, s.rows * s.heads * s.size);
  for (float& x : queries) x *= spread;
  const Floats keys = random_floats(random, s.rows * s.kv_heads * s.size);
  const Floats values = random_floats(random, s.rows * s.kv_heads * s.size);
  Floats key_cache = random_floats(random, s.rows * s.kv_heads * s.size * s.capacity);
  Floats value_cache = random_floats(random, s.rows * s.kv_heads * s.size * s.capacity);
  const Floats keys_before = key_cache, values_before = value_cache;
  std::vector<std::int64_t> positions, slots;
  for (std::int64_t row = 0; row < s.rows; ++row) slots.push_back(s.rows - 1 - row);
  for (std::int64_t row = 0; row < s.rows; ++row) positions.push_back((row * 37 + s.capacity - 1) % s.capacity);
  Floats out(static_cast<std::size_t>(s.rows * s.heads * s.size), NAN);
  const rocstar::DecodeStep step{.queries = queries.data(),
                                 .keys = keys.data(),
                                 .values = values.data(),
                                 .query_stride = s.heads * s.size,
                                 .key_stride = s.kv_heads * s.size,
                                 .value_stride = s.kv_heads * s.size,
                                 .key_cache = key_cache.data(),
                                 .value_cache = value_cache.data(),
                                 .out = out.data(),
                                 .slots = slots.data(),
                                 .positions = positions.data(),
                                 .heads = s.heads,
                                 .kv_heads = s.kv_heads,
                                 .size = s.size,
                                 .capacity = s.capacity,
                                 .scale = 0.25F};
  const std::int64_t middle = s.rows / 2;
  rocstar::attend(step, middle, s.rows);
  CHECK(middle == 0 || std::isnan(out.front()));  // rows outside the range are left alone
  rocstar::attend(step, 0, middle);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < key_cache.size(); ++i)
    changed += (key_cache[i] != keys_before[i]) + (value_cache[i] != values_before[i]);
  CHECK(changed <= 2 * keys.size());
  for (std::int64_t row = 0; row < s.rows; ++row) {
    const std::int64_t position = positions[static_cast<std::size_t>(row)];
    for (std::int64_t head = 0; head < s.kv_heads; ++head)
      for (std::int64_t d = 0; d < s.size; ++d) {
        const std::int64_t kv = slots[static_cast<std::size_t>(row)] * s.kv_heads + head;
        const auto from = static_cast<std::size_t>((row * s.kv_heads + head) * s.size + d);
        CHECK(key_cache[static_cast<std::size_t>((kv * s.size + d) * s.capacity + position)] == keys[from]);
        CHECK(value_cache[static_cast<std::size_t>((kv * s.capacity + position) * s.size + d)] == values[from]);
      }
    for (std::int64_t head = 0; head < s.heads; ++head)
      for (std::int64_t d = 0; d < s.size; ++d) {
        const double want = expected(s, queries, key_cache, value_cache, row, head, d, position, 0.25);
        const float got = out[static_cast<std::size_t>((row * s.heads + head) * s.size + d)];
        // A score of a hundred is rounded at 4e-6, its weight with it: in one step or two, as the machine has it.
        CHECK(std::abs(want - double{got}) < 2e-5);
      }
  }
}

void broken_numbers_are_not_hidden() {
  Floats query(16, 1.0F), key(16, 1.0F), key_cache(16 * 32, 1.0F), value_cache(16 * 32, 1.0F), out(16);
  key_cache[3] = NAN;
  const std::int64_t position = 20, slot = 0;
  rocstar::attend({.queries = query.data(),
                   .keys = key.data(),
                   .values = key.data(),
                   .query_stride = 16,
                   .key_stride = 16,
                   .value_stride = 16,
                   .key_cache = key_cache.data(),
                   .value_cache = value_cache.data(),
                   .out = out.data(),
                   .slots = &slot,
                   .positions = &position,
                   .heads = 1,
                   .kv_heads = 1,
                   .size = 16,
                   .capacity = 32,
                   .scale = 1.0F},
                  0, 1);
  for (const float x : out) CHECK(std::isnan(x));
}

}  // namespace

int main() {
  broken_numbers_are_not_hidden();
  for (const float spread : {0.0F, 1.0F, 40.0F}) {  // even weights; usual ones; nearly one token's alone
    rows_attend_to_their_own_tokens({.rows = 5, .heads = 6, .kv_heads = 3, .size = 16, .capacity = 64}, spread);
    rows_attend_to_their_own_tokens({.rows = 3, .heads = 9, .kv_heads = 1, .size = 40, .capacity = 32}, spread);
    rows_attend_to_their_own_tokens({.rows = 2, .heads = 7, .kv_heads = 1, .size = 8, .capacity = 16}, spread);
    rows_attend_to_their_own_tokens({.rows = 1, .heads = 1, .kv_heads = 1, .size = 128, .capacity = 160}, spread);
  }
  return 0;
}
