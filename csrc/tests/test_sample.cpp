#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Drawn {
  bool fine;
  std::int64_t token;
  float logprob;
};

Drawn draw(const std::vector<float>& logits, double noise, float temperature = 1) {
  Drawn drawn{false, -1, 0};
  drawn.fine = rocstar::sample({.logits = logits.data(),
                                .vocabulary = static_cast<std::int64_t>(logits.size()),
                                .temperatures = &temperature,
                                .noise = &noise,
                                .tokens = &drawn.token,
                                .logprobs = &drawn.logprob},
                               0, 1);
  return drawn;
}

// The definition, in double: the token in whose share of the whole the noise lies.
void tokens_are_those_of_the_definition(std::size_t vocabulary, float temperature) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  std::uniform_real_distribution<double> uniform;
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(vocabulary);
    for (float& x : logits) x = normal(random);
    const double noise = uniform(random);
    double top = -1e300, total = 0, sum = 0;
    for (const float x : logits) top = std::max(top, double{x} / double{temperature});
    for (const float x : logits) total += std::exp(double{x} / double{temperature} - top);
    const Drawn drawn = draw(logits, noise, temperature);
    CHECK(drawn.fine && drawn.token >= 0 && drawn.token < static_cast<std::int64_t>(vocabulary));
    const auto token = static_cast<std::size_t>(drawn.token);
    for (std::size_t i = 0; i < token; ++i) sum += std::exp(double{logits[i]} / double{temperature} - top) / total;
    const double share = std::exp(double{logits[token]} / double{temperature} - top) / total;
    CHECK(sum - 1e-6 <= noise && noise < sum + share + 1e-6);
    CHECK(std::abs(std::log(share) - double{drawn.logprob}) < 1e-5);
    const Drawn greedy = draw(logits, noise, 0);
    CHECK(logits[static_cast<std::size_t>(greedy.token)] == *std::max_element(logits.begin(), logits.end()));
  }
}

void ends_are_drawn_from_what_is_there() {
  const double last = 1 - 0x1p-53;
  for (const std::size_t around : {0U, 1U, 15U, 300U, 700U}) {
    std::vector<float> logits(around, kNever);
    logits.insert(logits.end(), {0, 0, -60});
    logits.insert(logits.end(), around, kNever);
    CHECK(draw(logits, 0).token == static_cast<std::int64_t>(around));
    CHECK(draw(logits, last).token == static_cast<std::int64_t>(around) + 1);
  }
}

void broken_logits_have_no_token() {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t place : {0U, 5U, 699U}) {
      std::vector<float> logits(700, 1.0F);
      logits[place] = bad;
      CHECK(!draw(logits, 0.5).fine && !draw(logits, 0.5, 0).fine);
    }
  }
  CHECK(!draw({kNever, kNever}, 0.5).fine);
}

}  // namespace

int main() {
  for (const std::size_t vocabulary : {1U, 2U, 16U, 255U, 256U, 900U})
    for (const float temperature : {1.0F, 0.6F, 2.0F}) tokens_are_those_of_the_definition(vocabulary, temperature);
  ends_are_drawn_from_what_is_there();
  broken_logits_have_no_token();
  return 0;
}
