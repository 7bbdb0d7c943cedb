#include "prompt_writer.h"

#include <time.h>

#include <cstdint>
#include <new>

namespace py = pybind11;

namespace rocstar {
namespace {

constexpr uint32_t kPrompt = 4096;
constexpr int64_t kRestNs = 1'000'000;

struct State {
  uint32_t writes;
  int64_t last_ns;
};

// Of io.BufferedWriter, looked up once.
struct Base {
  PyTypeObject* type;
  PyObject *write, *flush;
};

Base base;

// Behind the fields of the base.
State& state_of(PyObject* self) {
  return *reinterpret_cast<State*>(reinterpret_cast<char*>(self) + base.type->tp_basicsize);
}

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool may_wait(State& state) {
  if (state.writes < kPrompt) {
    ++state.writes;
    return false;
  }
  const int64_t now = now_ns();
  if (now - state.last_ns < kRestNs) return true;
  state.last_ns = now;
  return false;
}

PyObject* write(PyObject* self, PyObject* bytes) {
  PyObject* const both[] = {self, bytes};
  PyObject* const written = PyObject_Vectorcall(base.write, both, 2, nullptr);
  if (written == nullptr || may_wait(state_of(self))) return written;
  PyObject* const flushed = PyObject_Vectorcall(base.flush, both, 1, nullptr);
  if (flushed == nullptr)
    Py_DECREF(written);
  else
    Py_DECREF(flushed);
  return flushed == nullptr ? nullptr : written;
}

PyMethodDef methods[] = {{"write", write, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

py::object make_type() {
  py::object found = py::module_::import("_io").attr("BufferedWriter");
  base.type = reinterpret_cast<PyTypeObject*>(found.ptr());
  base.write = py::object(found.attr("write")).release().ptr();
  base.flush = py::object(found.attr("flush")).release().ptr();
  PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};
  PyType_Spec spec{.name = "_io.BufferedWriter",
                   .basicsize = static_cast<int>(base.type->tp_basicsize + Py_ssize_t{sizeof(State)}),
                   .itemsize = 0,
                   .flags = Py_TPFLAGS_DEFAULT,
                   .slots = slots};
  return py::reinterpret_steal<py::object>(PyType_FromSpecWithBases(&spec, py::make_tuple(found).ptr()));
}

}  // namespace

py::object make_prompt_writer(const py::object& raw) {
  static PyObject* const type = make_type().release().ptr();
  if (type == nullptr) throw py::error_already_set();
  py::object made = py::reinterpret_borrow<py::object>(type)(raw);
  new (&state_of(made.ptr())) State{0, 0};
  return made;
}

}  // namespace rocstar
