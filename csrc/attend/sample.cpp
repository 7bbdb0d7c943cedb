#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lanes.h"

namespace rocstar {
namespace {

constexpr std::int64_t kChunk = 16 * kLanes;  // tokens whose weights are summed up apart, so that few are looked at

// The row's weights e^(x - top), chunk by chunk, with the sum of each.
struct Row {
  std::vector<float> weights;
  std::vector<double> sums;
  float top;
  double total;
};

ROCSTAR_INLINE void weigh(const float* logits, std::int64_t vocabulary, float temperature, Row& row) {
  float* const x = row.weights.data();
  const std::int64_t padded = static_cast<std::int64_t>(row.weights.size());
  if (temperature == 0.0F || temperature == 1.0F) {
    std::copy_n(logits, vocabulary, x);
  } else {
    for (std::int64_t token = 0; token < vocabulary; ++token) x[token] = logits[token] / temperature;
  }
  std::fill(x + vocabulary, x + padded, -std::numeric_limits<float>::infinity());
  Lanes tops;
  load(tops, x);
  for (std::int64_t token = kLanes; token < padded; token += kLanes) {
    Lanes some;
    load(some, x + token);
    tops = some > tops ? some : tops;
  }
  row.top = largest(tops);
  row.total = 0;
  for (std::int64_t chunk = 0; chunk < padded; chunk += kChunk) {
    Lanes sums = {};
    for (std::int64_t token = chunk; token < chunk + kChunk; token += kLanes) {
      Lanes some;
      load(some, x + token);
      some -= row.top;
      exp_lanes(some);
      sums += some;
      store(x + token, some);
    }
    const double sum = sum_of(sums);
    row.sums[static_cast<std::size_t>(chunk / kChunk)] = sum;
    row.total += sum;
  }
}

// The first token at which the sum of the weights passes `target`; where rounding leaves none, the last that has one.
std::int64_t find(const Row& row, double target) {
  std::size_t chunk = 0, last = row.sums.size() - 1;
  while (last > 0 && row.sums[last] == 0) --last;
  double before = 0;
  while (chunk < last && before + row.sums[chunk] <= target) before += row.sums[chunk++];
  const auto begin = static_cast<std::int64_t>(chunk) * kChunk;
  std::int64_t found = begin;
  for (std::int64_t token = begin; token < begin + kChunk; ++token) {
    const float weight = row.weights[static_cast<std::size_t>(token)];
    if (weight == 0) continue;
    found = token;
    before += double{weight};
    if (before > target) break;
  }
  return found;
}

ROCSTAR_CLONES bool sample_rows(const Draws& draws, std::int64_t begin, std::int64_t end, Row& row) {
  for (std::int64_t number = begin; number < end; ++number) {
    const float* const logits = draws.logits + number * draws.vocabulary;
    const float temperature = draws.temperatures[number];
    weigh(logits, draws.vocabulary, temperature, row);
    if (!std::isfinite(row.total)) return false;
    const bool greedy = temperature == 0.0F;
    const std::int64_t token = greedy ? std::find(logits, logits + draws.vocabulary, row.top) - logits
                                      : find(row, draws.noise[number] * row.total);
    const float x = greedy ? logits[token] : logits[token] / temperature;
    draws.tokens[number] = token;
    draws.logprobs[number] = static_cast<float>(double{x} - double{row.top} - std::log(row.total));
  }
  return true;
}

}  // namespace

bool sample(const Draws& draws, std::int64_t begin, std::int64_t end) {
  const std::int64_t chunks = (draws.vocabulary + kChunk - 1) / kChunk;
  Row row{.weights = std::vector<float>(static_cast<std::size_t>(chunks * kChunk)),
          .sums = std::vector<double>(static_cast<std::size_t>(chunks)),
          .top = 0,
          .total = 0};
  return sample_rows(draws, begin, end, row);
}

}  // namespace rocstar
