// Tokens drawn from logits by inverse CDF, on a CPU. A row's token depends on that row alone.
#pragma once

#include <cstdint>

namespace rocstar {

struct Draws {
  const float* logits;  // [row][vocabulary]
  std::int64_t vocabulary;
  const float* temperatures;  // of each row; 0: the largest logit
  const double* noise;        // of each row, in [0, 1)
  std::int64_t* tokens;       // drawn
  float* logprobs;            // log_softmax(logits / temperature) at them; of temperature 1 where it is 0
};

// Rows [begin, end). False if the logits of one have no distribution, for they are not finite.
bool sample(const Draws& draws, std::int64_t begin, std::int64_t end);

}  // namespace rocstar
