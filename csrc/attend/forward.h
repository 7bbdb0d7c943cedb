// A whole forward of a small Llama-like model over the embedded engine's cache, on a CPU, in float32.
//
// Theory of operation. Tokens go through all layers in blocks of up to kWidth: inside a block each token is a lane of
// a vector, so a product of a weight row with a block is one chain of sums per token, in the order of the inputs. A
// token's numbers hence depend on its own slot alone: not on who shares the forward, nor on blocks or threads. Per
// layer all tokens put their key and value into the cache, then each attends to its slot's tokens up to itself: a
// prompt's tokens need nothing that decoding ones do not. Threads take slots, and never wait for each other.
//
// A vector is a register of AVX-512. Elsewhere everything holds as well, but sums lie in memory: torch is faster.
//
// For models whose weights stay in a core's cache: each thread reads all of them, once per block.
//
// Layouts (float32, innermost last): weights [output][input] as torch has them; the cache of each layer: keys
// [slot][kv head][size][capacity], values [slot][kv head][capacity][size]; rotation tables [position][size], the
// cosines and sines of both halves.
#pragma once

#include <cstdint>
#include <vector>

namespace rocstar {

struct Linear {
  const float* weight;
  const float* bias;  // null: none
};

struct Layer {
  const float* input_norm;
  Linear query, key, value;
  const float* query_norm;  // of each head, null: none
  const float* key_norm;
  Linear out;
  const float* inner_norm;
  Linear gate, up, down;
};

struct Model {
  std::int64_t hidden, heads, kv_heads, size, inner, vocabulary;
  float eps, scale;
  const float* embedding;
  std::vector<Layer> layers;
  const float* norm;
  Linear head;
  const float* cosines;
  const float* sines;
};

struct Cache {
  std::vector<float*> keys;  // of each layer
  std::vector<float*> values;
  std::int64_t capacity;  // a multiple of kLanes
};

// Flat tokens: what decodes, a token per slot from slot 0 on, then prompts' tokens by rising slot and position.
struct Tokens {
  const std::int64_t* ids;
  const std::int64_t* slots;
  const std::int64_t* positions;
  float* logits;  // of those that decode: [row][vocabulary]
};

// The tokens of some slots: [begin, end) of those that decode and [more_begin, more_end) of the others, which no other
// part has.
struct Part {
  std::int64_t begin, end, more_begin, more_end;

  std::int64_t count() const { return end - begin + more_end - more_begin; }
};

// Whether this machine has the registers.
bool forward_is_fast();

// One thread for each part, the caller's among them.
void forward(const Model& model, const Cache& cache, const Tokens& tokens, const std::vector<Part>& parts);

}  // namespace rocstar
