#include "forward.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

namespace {

using rocstar::Part;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// A model with weights of its own, and what it computes written out in double.
class Toy {
 public:
  Toy(std::int64_t heads, std::int64_t kv_heads, std::int64_t size, bool has_biases, bool has_head_norms) : random_(3) {
    model = {.hidden = 24,
             .heads = heads,
             .kv_heads = kv_heads,
             .size = size,
             .inner = 20,
             .vocabulary = 70,
             .eps = 1e-5F,
             .scale = 0.3F};
    const auto linear = [&](std::int64_t outputs, std::int64_t inputs) {
      return rocstar::Linear{weights(outputs * inputs, 0.4F), has_biases ? weights(outputs, 0.3F) : nullptr};
    };
    model.embedding = weights(model.vocabulary * model.hidden, 1);
    for (int i = 0; i < 2; ++i) {
      model.layers.push_back({.input_norm = weights(model.hidden, 1),
                              .query = linear(heads * size, model.hidden),
                              .key = linear(kv_heads * size, model.hidden),
                              .value = linear(kv_heads * size, model.hidden),
                              .query_norm = has_head_norms ? weights(size, 1) : nullptr,
                              .key_norm = has_head_norms ? weights(size, 1) : nullptr,
                              .out = linear(model.hidden, heads * size),
                              .inner_norm = weights(model.hidden, 1),
                              .gate = linear(model.inner, model.hidden),
                              .up = linear(model.inner, model.hidden),
                              .down = linear(model.hidden, model.inner)});
    }
    model.norm = weights(model.hidden, 1);
    model.head = linear(model.vocabulary, model.hidden);
    model.cosines = weights(kCapacity * size, 1);
    model.sines = weights(kCapacity * size, 1);
  }

  static constexpr std::int64_t kCapacity = 32;
  rocstar::Model model;

  // Logits behind the last of some tokens of one sequence.
  Doubles expected(const std::vector<std::int64_t>& ids) const {
    std::vector<Doubles> hidden;
    for (const std::int64_t id : ids)
      hidden.emplace_back(model.embedding + id * model.hidden, model.embedding + (id + 1) * model.hidden);
    for (const rocstar::Layer& layer : model.layers) {
      std::vector<Doubles> keys, values;
      for (std::size_t t = 0; t < hidden.size(); ++t) {
        const Doubles h = norm(hidden[t], layer.input_norm);
        keys.push_back(turned(product(layer.key, h, model.kv_heads * model.size), layer.key_norm, t));
        values.push_back(product(layer.value, h, model.kv_heads * model.size));
        const Doubles q = turned(product(layer.query, h, model.heads * model.size), layer.query_norm, t);
        add(hidden[t], product(layer.out, attended(q, keys, values), model.hidden));
        const Doubles inner = norm(hidden[t], layer.inner_norm);
        Doubles gate = product(layer.gate, inner, model.inner);
        const Doubles up = product(layer.up, inner, model.inner);
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        add(hidden[t], product(layer.down, gate, model.hidden));
      }
    }
    return product(model.head, norm(hidden.back(), model.norm), model.vocabulary);
  }

 private:
  const float* weights(std::int64_t count, float spread) {
    std::normal_distribution<float> normal(0, spread);
    Floats made(at(count));
    for (float& x : made) x = normal(random_);
    owned_.push_back(std::move(made));
    return owned_.back().data();
  }

  static void add(Doubles& to, const Doubles& some) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += some[i];
  }

  Doubles norm(const Doubles& x, const float* weight) const {
    double squares = 0;
    for (const double one : x) squares += one * one;
    Doubles y;
    for (std::size_t i = 0; i < x.size(); ++i)
      y.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + double{model.eps}) * double{weight[i]});
    return y;
  }

  static Doubles product(const rocstar::Linear& linear, const Doubles& x, std::int64_t outputs) {
    Doubles y;
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = linear.bias == nullptr ? 0 : double{linear.bias[o]};
      for (std::size_t i = 0; i < x.size(); ++i) sum += double{linear.weight[at(o) * x.size() + i]} * x[i];
      y.push_back(sum);
    }
    return y;
  }

  Doubles turned(const Doubles& x, const float* weight, std::size_t position) const {
    const std::size_t size = at(model.size), half = size / 2;
    Doubles y;
    for (std::size_t head = 0; head < x.size() / size; ++head) {
      Doubles own(x.begin() + static_cast<std::ptrdiff_t>(head * size),
                  x.begin() + static_cast<std::ptrdiff_t>((head + 1) * size));
      if (weight != nullptr) own = norm(own, weight);
      for (std::size_t d = 0; d < size; ++d) {
        const double other = d < half ? -own[d + half] : own[d - half];
        y.push_back(own[d] * double{model.cosines[position * size + d]} +
                    other * double{model.sines[position * size + d]});
      }
    }
    return y;
  }

  Doubles attended(const Doubles& q, const std::vector<Doubles>& keys, const std::vector<Doubles>& values) const {
    const std::size_t size = at(model.size), group = at(model.heads / model.kv_heads);
    Doubles out;
    for (std::size_t head = 0; head < at(model.heads); ++head) {
      Doubles mixed(size);
      double total = 0;
      for (std::size_t t = 0; t < keys.size(); ++t) {
        double score = 0;
        for (std::size_t d = 0; d < size; ++d) score += q[head * size + d] * keys[t][head / group * size + d];
        const double weight = std::exp(score * double{model.scale});
        total += weight;
        for (std::size_t d = 0; d < size; ++d) mixed[d] += weight * values[t][head / group * size + d];
      }
      for (const double x : mixed) out.push_back(x / total);
    }
    return out;
  }

  std::mt19937 random_;
  std::vector<Floats> owned_;
};

// Sequences in slots of a cache, which go forward together.
struct Sequences {
  const Toy& toy;
  Floats keys, values;

  Sequences(const Toy& model, std::int64_t slots) : toy(model) {
    const std::int64_t kv = toy.model.kv_heads * toy.model.size * Toy::kCapacity;
    keys.resize(toy.model.layers.size() * at(slots * kv), NAN);  // what no token has written is not read
    values.resize(keys.size(), NAN);
  }

  struct Row {
    std::int64_t slot;
    std::vector<std::int64_t> ids;  // those that are new, of which the last one decodes
    std::int64_t begin;             // the first one's position
  };

  Floats forward(const std::vector<Row>& rows, const std::vector<std::size_t>& cuts) {
    std::vector<std::int64_t> ids, own, positions;
    const auto add = [&](const Row& row, std::size_t i) {
      ids.push_back(row.ids[i]);
      own.push_back(row.slot);
      positions.push_back(row.begin + static_cast<std::int64_t>(i));
    };
    for (const Row& row : rows) add(row, row.ids.size() - 1);
    std::vector<Part> parts;
    for (std::size_t n = 0, cut = 0; cut < cuts.size(); ++cut) {
      Part part{static_cast<std::int64_t>(n), 0, static_cast<std::int64_t>(ids.size()), 0};
      for (; n < cuts[cut]; ++n)
        for (std::size_t i = 0; i + 1 < rows[n].ids.size(); ++i) add(rows[n], i);
      part.end = static_cast<std::int64_t>(n);
      part.more_end = static_cast<std::int64_t>(ids.size());
      parts.push_back(part);
    }
    Floats logits(rows.size() * at(toy.model.vocabulary), NAN);
    rocstar::Cache cache{.capacity = Toy::kCapacity};
    const std::size_t layers = toy.model.layers.size();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      cache.keys.push_back(keys.data() + layer * (keys.size() / layers));
      cache.values.push_back(values.data() + layer * (values.size() / layers));
    }
    rocstar::forward(toy.model, cache, {ids.data(), own.data(), positions.data(), logits.data()}, parts);
    return logits;
  }
};

std::vector<std::int64_t> ids_of(std::int64_t row, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back((row * 13 + i * 7 + 5) % 70);
  return ids;
}

void check_row(const Toy& toy, const Floats& logits, std::size_t row, const std::vector<std::int64_t>& ids) {
  const Doubles wanted = toy.expected(ids);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    CHECK(std::abs(wanted[i] - double{logits[row * wanted.size() + i]}) < 1e-4 * (1 + std::abs(wanted[i])));
}

void logits_are_those_of_the_definition(const Toy& toy) {
  Sequences sequences(toy, 4);
  // Prompts of several lengths at once, then one token more of some, then some more of another.
  Floats logits = sequences.forward({{2, ids_of(0, 9), 0}, {0, ids_of(1, 1), 0}, {3, ids_of(2, 4), 0}}, {3});
  check_row(toy, logits, 0, ids_of(0, 9));
  check_row(toy, logits, 1, ids_of(1, 1));
  check_row(toy, logits, 2, ids_of(2, 4));
  const std::vector<std::int64_t> more = ids_of(0, 12), third = ids_of(2, 5);
  logits = sequences.forward({{3, {third.back()}, 4}, {2, {more.begin() + 9, more.end()}, 9}}, {2});
  check_row(toy, logits, 0, third);
  check_row(toy, logits, 1, more);
}

// Bit by bit: whoever else is there, in blocks of any fullness, by any number of threads, at once or token by token.
void rows_depend_on_themselves_alone(const Toy& toy) {
  constexpr std::int64_t kRows = 110;
  std::vector<Floats> alone;
  std::vector<Sequences::Row> rows;
  for (std::int64_t row = 0; row < kRows; ++row) {
    rows.push_back({kRows - 1 - row, ids_of(row, 1 + row % 5), 0});
    Sequences one(toy, 1);
    Floats logits;
    for (std::int64_t i = 0; i <= row % 5; ++i) logits = one.forward({{0, {ids_of(row, 5)[at(i)]}, i}}, {1});
    alone.push_back(std::move(logits));
  }
  for (const std::vector<std::size_t>& cuts :
       {std::vector<std::size_t>{kRows}, {50, kRows}, {1, 17, 33, 100, kRows}, {kRows, kRows}}) {
    Sequences all(toy, kRows);
    const Floats logits = all.forward(rows, cuts);
    for (std::size_t row = 0; row < alone.size(); ++row)
      for (std::size_t i = 0; i < alone[row].size(); ++i) CHECK(alone[row][i] == logits[row * alone[row].size() + i]);
  }
}

}  // namespace

int main() {
  for (const Toy& toy : {Toy(6, 3, 4, false, true), Toy(4, 1, 10, true, false), Toy(3, 3, 16, true, true)}) {
    logits_are_those_of_the_definition(toy);
    rows_depend_on_themselves_alone(toy);
  }
  return 0;
}
