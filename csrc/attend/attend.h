// Attention of one decoding step over the embedded engine's cache, on a CPU.
//
// Theory of operation. Each of `rows` sequences brings one new token: its queries, its key and its value. The
// key and value enter the cache in `slots[row]` at `positions[row]`, then the queries attend to the slot's
// tokens 0 .. positions[row]. No padding: a row costs its own length. A row's result depends on that row alone.
//
// Layouts (float32, innermost last): queries [row][head][size], keys and values [row][kv head][size], the cache
// of one layer: keys [slot][kv head][size][capacity], values [slot][kv head][capacity][size]; no two rows have one
// slot. Keys lie with their tokens side by side, so that scores of many tokens are computed at once.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace rocstar {

struct DecodeStep {
  const float* queries;
  const float* keys;
  const float* values;
  std::int64_t query_stride;  // floats from one row to the next
  std::int64_t key_stride;
  std::int64_t value_stride;
  float* key_cache;
  float* value_cache;
  float* out;                     // [row][head][size], dense
  const std::int64_t* slots;      // of each row
  const std::int64_t* positions;  // of the new token, < capacity
  std::int64_t heads;             // a multiple of kv_heads
  std::int64_t kv_heads;
  std::int64_t size;
  std::int64_t capacity;  // a multiple of kLanes
  float scale;
};

// Rows [begin, end). Threads may take disjoint ranges of the same step.
void attend(const DecodeStep& step, std::int64_t begin, std::int64_t end);

}  // namespace rocstar
