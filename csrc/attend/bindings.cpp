// The embedded engine's decoding step for Python. Tensors come as addresses: no torch headers, no copies.
#include <pybind11/pybind11.h>

#include "attend.h"

namespace py = pybind11;

namespace {

template <typename T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

PYBIND11_MODULE(_decode, module) {
  module.doc() = "Attention of one decoding step on a CPU (csrc/attend/attend.h).";
  module.attr("LANES") = rocstar::kLanes;
  module.def(
      "attend",
      [](std::uintptr_t queries, std::uintptr_t keys, std::uintptr_t values, std::int64_t query_stride,
         std::int64_t key_stride, std::int64_t value_stride, std::uintptr_t key_cache, std::uintptr_t value_cache,
         std::uintptr_t out, std::uintptr_t positions, std::int64_t heads, std::int64_t kv_heads, std::int64_t size,
         std::int64_t capacity, float scale, std::int64_t begin, std::int64_t end) {
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
                         .positions = at<const std::int64_t>(positions),
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .size = size,
                         .capacity = capacity,
                         .scale = scale},
                        begin, end);
      },
      "Rows [begin, end) of a step; every tensor by its address, strides in elements.");
}
