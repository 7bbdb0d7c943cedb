// The embedded engine's decoding step for Python. Tensors come as addresses: no torch headers, no copies.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include <stdexcept>

#include "attend.h"
#include "forward.h"
#include "lanes.h"
#include "sample.h"

namespace py = pybind11;

namespace {

using Address = std::uintptr_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Addresses in the order of the model's fields; 0 where there is nothing.
class Addresses {
 public:
  explicit Addresses(const std::vector<Address>& all) : all_(all) {}

  const float* floats() {
    if (next_ == all_.size()) throw std::invalid_argument("too few weights");
    return at<const float>(all_[next_++]);
  }
  rocstar::Linear linear() {
    const float* const weight = floats();
    return {weight, floats()};
  }
  bool at_end() const { return next_ == all_.size(); }

 private:
  const std::vector<Address>& all_;
  std::size_t next_ = 0;
};

rocstar::Layer layer_of(Addresses& from) {
  rocstar::Layer layer;
  layer.input_norm = from.floats();
  layer.query = from.linear();
  layer.key = from.linear();
  layer.value = from.linear();
  layer.query_norm = from.floats();
  layer.key_norm = from.floats();
  layer.out = from.linear();
  layer.inner_norm = from.floats();
  layer.gate = from.linear();
  layer.up = from.linear();
  layer.down = from.linear();
  return layer;
}

// A model's shape. Its weights are told at every call, for whoever learns may have put them elsewhere.
class Forward {
 public:
  Forward(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t size,
          std::int64_t inner, std::int64_t vocabulary, float eps, float scale)
      : layers_(layers),
        model_{.hidden = hidden,
               .heads = heads,
               .kv_heads = kv_heads,
               .size = size,
               .inner = inner,
               .vocabulary = vocabulary,
               .eps = eps,
               .scale = scale} {}

  void run(const std::vector<Address>& weights, Address cosines, Address sines, const std::vector<Address>& keys,
           const std::vector<Address>& values, std::int64_t capacity, Address ids, Address slots_of_tokens,
           Address positions, Address logits, const std::vector<std::array<std::int64_t, 4>>& parts) {
    if (static_cast<std::int64_t>(keys.size()) != layers_ || keys.size() != values.size())
      throw std::invalid_argument("not a cache of each layer");
    Addresses from(weights);
    rocstar::Model model = model_;
    model.embedding = from.floats();
    for (std::int64_t i = 0; i < layers_; ++i) model.layers.push_back(layer_of(from));
    model.norm = from.floats();
    model.head = from.linear();
    if (!from.at_end()) throw std::invalid_argument("too many weights");
    model.cosines = at<const float>(cosines);
    model.sines = at<const float>(sines);
    std::vector<rocstar::Part> some;
    for (const auto& [begin, end, more_begin, more_end] : parts) some.push_back({begin, end, more_begin, more_end});
    rocstar::Cache cache{.capacity = capacity};
    for (const Address layer : keys) cache.keys.push_back(at<float>(layer));
    for (const Address layer : values) cache.values.push_back(at<float>(layer));
    const py::gil_scoped_release released;
    rocstar::forward(model, cache,
                     {at<const std::int64_t>(ids), at<const std::int64_t>(slots_of_tokens),
                      at<const std::int64_t>(positions), at<float>(logits)},
                     some);
  }

 private:
  std::int64_t layers_;
  rocstar::Model model_;
};

}  // namespace

PYBIND11_MODULE(_decode, module) {
  module.doc() = "What the embedded engine computes on a CPU by itself (csrc/attend/).";
  module.attr("LANES") = rocstar::kLanes;
  module.attr("FORWARD_IS_FAST") = rocstar::forward_is_fast();
  module.def(
      "attend",
      [](Address queries, Address keys, Address values, std::int64_t query_stride, std::int64_t key_stride,
         std::int64_t value_stride, Address key_cache, Address value_cache, Address out, Address slots,
         Address positions, std::int64_t heads, std::int64_t kv_heads, std::int64_t size, std::int64_t capacity,
         float scale, std::int64_t begin, std::int64_t end) {
        const py::gil_scoped_release released;
        rocstar::attend({.queries = at<const float>(queries),
                         .keys = at<const float>(keys),
                         .values = at<const float>(values),
                         .query_stride = query_stride,
                         .key_stride = key_stride,
                         .value_stride = value_stride,
                         .key_cache = at<float>(key_cache),
                         .value_cache = at<float>(value_cache),
                         .out = at<float>(out),
                         .slots = at<const std::int64_t>(slots),
                         .positions = at<const std::int64_t>(positions),
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .size = size,
                         .capacity = capacity,
                         .scale = scale},
                        begin, end);
      },
      "Rows [begin, end) of a step; every tensor by its address, strides in elements.");
  py::class_<Forward>(module, "Forward", "A whole forward of a model of this shape (csrc/attend/forward.h).")
      .def(py::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                    float, float>(),
           py::kw_only(), py::arg("layers"), py::arg("hidden"), py::arg("heads"), py::arg("kv_heads"), py::arg("size"),
           py::arg("inner"), py::arg("vocabulary"), py::arg("eps"), py::arg("scale"))
      .def("run", &Forward::run);
  module.def(
      "sample",
      [](Address logits, std::int64_t vocabulary, Address temperatures, Address noise, Address tokens, Address logprobs,
         std::int64_t begin, std::int64_t end) {
        const py::gil_scoped_release released;
        return rocstar::sample({.logits = at<const float>(logits),
                                .vocabulary = vocabulary,
                                .temperatures = at<const float>(temperatures),
                                .noise = at<const double>(noise),
                                .tokens = at<std::int64_t>(tokens),
                                .logprobs = at<float>(logprobs)},
                               begin, end);
      },
      "Tokens of rows [begin, end) by inverse CDF (csrc/attend/sample.h); false if a row has no distribution.");
}
