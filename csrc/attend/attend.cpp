#include "attend.h"

#include <vector>

#include "heads.h"

namespace rocstar {
namespace {

ROCSTAR_CLONES void attend_rows(const DecodeStep& step, std::int64_t begin, std::int64_t end, float* scores) {
  const std::int64_t size = step.size, capacity = step.capacity;
  const SlotShape shape{step.heads, step.kv_heads, size, capacity, step.scale};
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t position = step.positions[row];
    float* const keys = step.key_cache + step.slots[row] * step.kv_heads * size * capacity;
    float* const values = step.value_cache + step.slots[row] * step.kv_heads * size * capacity;
    for (std::int64_t head = 0; head < step.kv_heads; ++head) {
      const float* new_key = step.keys + row * step.key_stride + head * size;
      for (std::int64_t d = 0; d < size; ++d) keys[(head * size + d) * capacity + position] = new_key[d];
      std::memcpy(values + (head * capacity + position) * size, step.values + row * step.value_stride + head * size,
                  static_cast<std::size_t>(size) * sizeof(float));
    }
    attend_slot(step.queries + row * step.query_stride, keys, values, step.out + row * step.heads * size, position + 1,
                scores, shape);
  }
}

}  // namespace

void attend(const DecodeStep& step, std::int64_t begin, std::int64_t end) {
  std::vector<float> scores(static_cast<std::size_t>(kMostHeads * step.capacity));
  attend_rows(step, begin, end, scores.data());
}

}  // namespace rocstar
