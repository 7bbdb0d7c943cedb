#include "forward.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "heads.h"

namespace rocstar {
namespace {

constexpr std::int64_t kWidth = 3 * kLanes;  // tokens of a block
constexpr int kTogether = 8;                // outputs of a product that are summed up at once: 24 sums, of 32 registers
constexpr std::int64_t kLogitsAtOnce = 64;  // before they are turned into rows

// y[o] += sum over i of weight[o][i] * x[i] for `Outs` outputs, or = if there is nothing yet.
template <int Vectors, int Outs>
ROCSTAR_INLINE void multiply_some(const float* weight, const float* bias, std::int64_t inputs, const float* x, float* y,
                                  bool adds) {
  Lanes sums[Outs][Vectors] = {};
  for (std::int64_t i = 0; i < inputs; ++i) {
    Lanes in[Vectors];
    for (int v = 0; v < Vectors; ++v) load(in[v], x + i * kWidth + v * kLanes);
    for (int o = 0; o < Outs; ++o)
      for (int v = 0; v < Vectors; ++v) sums[o][v] += weight[o * inputs + i] * in[v];
  }
  for (int o = 0; o < Outs; ++o) {
    for (int v = 0; v < Vectors; ++v) {
      float* const to = y + o * kWidth + v * kLanes;
      if (bias != nullptr) sums[o][v] += bias[o];
      if (adds) {
        Lanes before;
        load(before, to);
        sums[o][v] += before;
      }
      store(to, sums[o][v]);
    }
  }
}

// y [output][token], x [input][token]. Has clones, so that it is compiled once per machine and not once per call: the
// file compiles in a quarter of the time.
template <int Vectors>
ROCSTAR_CLONES void multiply(const Linear& linear, std::int64_t outputs, std::int64_t inputs, const float* x, float* y,
                             bool adds = false) {
  std::int64_t o = 0;
  const auto bias = [&linear, &o] { return linear.bias == nullptr ? nullptr : linear.bias + o; };
  for (; o + kTogether <= outputs; o += kTogether)
    multiply_some<Vectors, kTogether>(linear.weight + o * inputs, bias(), inputs, x, y + o * kWidth, adds);
  for (; o < outputs; ++o)
    multiply_some<Vectors, 1>(linear.weight + o * inputs, bias(), inputs, x, y + o * kWidth, adds);
}

// y = x / sqrt(mean of x^2 + eps) * weight, token by token.
template <int Vectors>
ROCSTAR_INLINE void normalise(const float* x, const float* weight, float* y, std::int64_t count, float eps) {
  Lanes factors[Vectors] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < Vectors; ++v) {
      Lanes in;
      load(in, x + i * kWidth + v * kLanes);
      factors[v] += in * in;
    }
  }
  for (int v = 0; v < Vectors; ++v) {
    factors[v] = factors[v] / static_cast<float>(count) + eps;
    for (int lane = 0; lane < kLanes; ++lane) factors[v][lane] = 1.0F / std::sqrt(factors[v][lane]);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < Vectors; ++v) {
      Lanes in;
      load(in, x + i * kWidth + v * kLanes);
      store(y + i * kWidth + v * kLanes, in * factors[v] * weight[i]);
    }
  }
}

// One head's dimensions turned by the token's position: the first half with the second.
template <int Vectors>
ROCSTAR_INLINE void rotate(float* x, const float* cosines, const float* sines, std::int64_t size) {
  const std::int64_t half = size / 2;
  for (std::int64_t d = 0; d < half; ++d) {
    for (int v = 0; v < Vectors; ++v) {
      const std::int64_t low = d * kWidth + v * kLanes, high = low + half * kWidth;
      Lanes a, b, cos_low, cos_high, sin_low, sin_high;
      load(a, x + low);
      load(b, x + high);
      load(cos_low, cosines + low);
      load(cos_high, cosines + high);
      load(sin_low, sines + low);
      load(sin_high, sines + high);
      store(x + low, a * cos_low - b * sin_low);
      store(x + high, b * cos_high + a * sin_high);
    }
  }
}

// gate = silu(gate) * up.
template <int Vectors>
ROCSTAR_INLINE void gate_by(float* gate, const float* up, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < Vectors; ++v) {
      Lanes x, other;
      load(x, gate + i * kWidth + v * kLanes);
      load(other, up + i * kWidth + v * kLanes);
      Lanes small = x > 0.0F ? -x : x;
      exp_lanes(small);
      const Lanes ones = Lanes{} + 1.0F;
      store(gate + i * kWidth + v * kLanes, x * (x > 0.0F ? ones : small) / (small + 1.0F) * other);
    }
  }
}

// The memory of one part, kept from forward to forward by the thread that calls.
class Scratch {
 public:
  void reserve(std::int64_t floats) {
    if (floats <= size_) return;
    bytes_.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>((floats + 15) / 16 * 64))));
    if (!bytes_) throw std::bad_alloc();
    size_ = floats;
  }
  float* data() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(float* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<float, Free> bytes_;
  std::int64_t size_ = 0;
};

std::int64_t blocks_of(const Part& part) { return (part.count() + kWidth - 1) / kWidth; }

// What is in work of one part, in blocks of kWidth tokens.
struct Work {
  const Model& model;
  const Cache& cache;
  const Tokens& tokens;
  const Part& part;
  std::int64_t blocks;
  float *hidden, *cosines, *sines, *queries;               // of all blocks
  float *normed, *projected, *inner, *up, *rows, *scores;  // of the block at work

  static std::int64_t floats(const Model& model, const Cache& cache, const Part& part);
  static Work in(float* memory, const Model& model, const Cache& cache, const Tokens& tokens, const Part& part);

  std::int64_t first(std::int64_t block) const { return block * kWidth; }
  std::int64_t length(std::int64_t block) const { return std::min(kWidth, part.count() - first(block)); }
  std::int64_t token(std::int64_t i) const {
    const std::int64_t own = part.end - part.begin;
    return i < own ? part.begin + i : part.more_begin + i - own;
  }
  float* keys(std::int64_t layer, std::int64_t slot) const {
    return cache.keys[static_cast<std::size_t>(layer)] + offset(slot);
  }
  float* values(std::int64_t layer, std::int64_t slot) const {
    return cache.values[static_cast<std::size_t>(layer)] + offset(slot);
  }
  std::int64_t offset(std::int64_t slot) const { return slot * model.kv_heads * model.size * cache.capacity; }
};

std::int64_t Work::floats(const Model& m, const Cache& cache, const Part& part) {
  const std::int64_t blocks = blocks_of(part);
  const std::int64_t heads = m.heads * m.size, all_heads = heads + 2 * m.kv_heads * m.size;
  return blocks * kWidth * (m.hidden + 2 * m.size + heads) +
         kWidth * (m.hidden + std::max(all_heads, kLogitsAtOnce) + 2 * m.inner + heads) + kMostHeads * cache.capacity;
}

Work Work::in(float* memory, const Model& m, const Cache& cache, const Tokens& tokens, const Part& part) {
  const std::int64_t blocks = blocks_of(part);
  const std::int64_t heads = m.heads * m.size, all_heads = heads + 2 * m.kv_heads * m.size;
  const auto take = [&memory](std::int64_t count) {
    float* const found = memory;
    memory += count;
    return found;
  };
  Work work{.model = m, .cache = cache, .tokens = tokens, .part = part, .blocks = blocks};
  work.hidden = take(blocks * kWidth * m.hidden);
  work.cosines = take(blocks * kWidth * m.size);
  work.sines = take(blocks * kWidth * m.size);
  work.queries = take(blocks * kWidth * heads);
  work.normed = take(kWidth * m.hidden);
  work.projected = take(kWidth * std::max(all_heads, kLogitsAtOnce));
  work.inner = take(kWidth * m.inner);
  work.up = take(kWidth * m.inner);
  work.rows = take(kWidth * heads);
  work.scores = take(kMostHeads * cache.capacity);
  return work;
}

// Embeddings and rotations of a block's tokens. Lanes without a token get zeros.
ROCSTAR_INLINE void begin_block(const Work& work, std::int64_t block) {
  const Model& m = work.model;
  float* const hidden = work.hidden + block * kWidth * m.hidden;
  float* const cosines = work.cosines + block * kWidth * m.size;
  float* const sines = work.sines + block * kWidth * m.size;
  const std::int64_t length = work.length(block);
  if (length < kWidth) {
    std::fill_n(hidden, kWidth * m.hidden, 0.0F);
    std::fill_n(cosines, kWidth * m.size, 0.0F);
    std::fill_n(sines, kWidth * m.size, 0.0F);
  }
  for (std::int64_t lane = 0; lane < length; ++lane) {
    const std::int64_t token = work.token(work.first(block) + lane);
    const float* const embedding = m.embedding + work.tokens.ids[token] * m.hidden;
    const std::int64_t position = work.tokens.positions[token];
    for (std::int64_t i = 0; i < m.hidden; ++i) hidden[i * kWidth + lane] = embedding[i];
    for (std::int64_t d = 0; d < m.size; ++d) {
      cosines[d * kWidth + lane] = m.cosines[position * m.size + d];
      sines[d * kWidth + lane] = m.sines[position * m.size + d];
    }
  }
}

// Keys and values of a block into the cache, its queries aside.
template <int Vectors>
ROCSTAR_INLINE void project(const Work& work, std::int64_t number, std::int64_t block) {
  const Model& m = work.model;
  const Layer& layer = m.layers[static_cast<std::size_t>(number)];
  const std::int64_t heads = m.heads * m.size, kv = m.kv_heads * m.size, capacity = work.cache.capacity;
  const float* const cosines = work.cosines + block * kWidth * m.size;
  const float* const sines = work.sines + block * kWidth * m.size;
  float* const q = work.projected;
  float* const k = q + heads * kWidth;
  float* const v = k + kv * kWidth;
  normalise<Vectors>(work.hidden + block * kWidth * m.hidden, layer.input_norm, work.normed, m.hidden, m.eps);
  multiply<Vectors>(layer.query, heads, m.hidden, work.normed, q);
  multiply<Vectors>(layer.key, kv, m.hidden, work.normed, k);
  multiply<Vectors>(layer.value, kv, m.hidden, work.normed, v);
  for (std::int64_t head = 0; head < m.heads + m.kv_heads; ++head) {  // queries and keys lie together
    float* const x = q + head * m.size * kWidth;
    const float* const weight = head < m.heads ? layer.query_norm : layer.key_norm;
    if (weight != nullptr) normalise<Vectors>(x, weight, x, m.size, m.eps);
    rotate<Vectors>(x, cosines, sines, m.size);
  }
  float* const queries = work.queries + block * kWidth * heads;
  for (std::int64_t lane = 0; lane < work.length(block); ++lane) {
    const std::int64_t token = work.token(work.first(block) + lane);
    const std::int64_t slot = work.tokens.slots[token], position = work.tokens.positions[token];
    for (std::int64_t i = 0; i < heads; ++i) queries[lane * heads + i] = q[i * kWidth + lane];
    float* const keys = work.keys(number, slot) + position;
    for (std::int64_t i = 0; i < kv; ++i) keys[i * capacity] = k[i * kWidth + lane];
    for (std::int64_t head = 0; head < m.kv_heads; ++head) {
      float* const values = work.values(number, slot) + (head * capacity + position) * m.size;
      for (std::int64_t d = 0; d < m.size; ++d) values[d] = v[(head * m.size + d) * kWidth + lane];
    }
  }
}

// Attention of a block, and what follows it in the layer.
template <int Vectors>
ROCSTAR_INLINE void attend_and_think(const Work& work, std::int64_t number, std::int64_t block) {
  const Model& m = work.model;
  const Layer& layer = m.layers[static_cast<std::size_t>(number)];
  const std::int64_t heads = m.heads * m.size;
  const SlotShape shape{m.heads, m.kv_heads, m.size, work.cache.capacity, m.scale};
  const float* const queries = work.queries + block * kWidth * heads;
  float* const hidden = work.hidden + block * kWidth * m.hidden;
  for (std::int64_t lane = 0; lane < work.length(block); ++lane) {
    const std::int64_t token = work.token(work.first(block) + lane), slot = work.tokens.slots[token];
    attend_slot(queries + lane * heads, work.keys(number, slot), work.values(number, slot), work.rows,
                work.tokens.positions[token] + 1, work.scores, shape);
    for (std::int64_t i = 0; i < heads; ++i) work.projected[i * kWidth + lane] = work.rows[i];
  }
  multiply<Vectors>(layer.out, m.hidden, heads, work.projected, hidden, true);
  normalise<Vectors>(hidden, layer.inner_norm, work.normed, m.hidden, m.eps);
  multiply<Vectors>(layer.gate, m.inner, m.hidden, work.normed, work.inner);
  multiply<Vectors>(layer.up, m.inner, m.hidden, work.normed, work.up);
  gate_by<Vectors>(work.inner, work.up, m.inner);
  multiply<Vectors>(layer.down, m.hidden, m.inner, work.inner, hidden, true);
}

// Logits of those of a block that decode; they come first.
template <int Vectors>
ROCSTAR_INLINE void tell(const Work& work, std::int64_t block) {
  const Model& m = work.model;
  const std::int64_t own = std::min(work.length(block), work.part.end - work.part.begin - work.first(block));
  if (own <= 0) return;
  normalise<Vectors>(work.hidden + block * kWidth * m.hidden, m.norm, work.normed, m.hidden, m.eps);
  float* const rows = work.tokens.logits + (work.part.begin + work.first(block)) * m.vocabulary;
  for (std::int64_t begin = 0; begin < m.vocabulary; begin += kLogitsAtOnce) {
    const std::int64_t count = std::min(kLogitsAtOnce, m.vocabulary - begin);
    const Linear some{m.head.weight + begin * m.hidden, m.head.bias == nullptr ? nullptr : m.head.bias + begin};
    multiply<Vectors>(some, count, m.hidden, work.normed, work.projected);
    for (std::int64_t lane = 0; lane < own; ++lane)
      for (std::int64_t i = 0; i < count; ++i)
        rows[lane * m.vocabulary + begin + i] = work.projected[i * kWidth + lane];
  }
}

// As many vectors as the block's tokens fill: what is behind them would be worked out for nobody.
ROCSTAR_CLONES void run(const Work& work) {
  const auto vectors = [&work](std::int64_t block) { return (work.length(block) + kLanes - 1) / kLanes; };
  for (std::int64_t block = 0; block < work.blocks; ++block) begin_block(work, block);
  for (std::int64_t layer = 0; layer < static_cast<std::int64_t>(work.model.layers.size()); ++layer) {
    for (std::int64_t block = 0; block < work.blocks; ++block) {
      if (vectors(block) == 1) project<1>(work, layer, block);
      if (vectors(block) == 2) project<2>(work, layer, block);
      if (vectors(block) == 3) project<3>(work, layer, block);
    }
    for (std::int64_t block = 0; block < work.blocks; ++block) {
      if (vectors(block) == 1) attend_and_think<1>(work, layer, block);
      if (vectors(block) == 2) attend_and_think<2>(work, layer, block);
      if (vectors(block) == 3) attend_and_think<3>(work, layer, block);
    }
  }
  for (std::int64_t block = 0; block < work.blocks; ++block) {
    if (vectors(block) == 1) tell<1>(work, block);
    if (vectors(block) == 2) tell<2>(work, block);
    if (vectors(block) == 3) tell<3>(work, block);
  }
}

}  // namespace

bool forward_is_fast() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

void forward(const Model& model, const Cache& cache, const Tokens& tokens, const std::vector<Part>& parts) {
  thread_local std::vector<Scratch> scratch;
  if (scratch.size() < parts.size()) scratch.resize(parts.size());
  std::vector<std::jthread> others;  // joined at the end, whatever comes
  for (std::size_t i = parts.size(); i-- > 0;) {
    scratch[i].reserve(Work::floats(model, cache, parts[i]));
    const auto work = [&, i, memory = scratch[i].data()] { run(Work::in(memory, model, cache, tokens, parts[i])); };
    if (i == 0) {
      work();
    } else {
      others.emplace_back(work);
    }
  }
}

}  // namespace rocstar
