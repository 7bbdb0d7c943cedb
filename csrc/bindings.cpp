// The only file that knows Python: starts the loop of supervise.h and lets a child call back into the interpreter.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/random.h>
#include <sys/utsname.h>

#include <system_error>

#include "landlock.h"
#include "seccomp.h"
#include "supervise.h"
#include "utf8.h"
#include "zygote.h"

namespace py = pybind11;

namespace {

uint64_t fresh_seed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return seed;
}

// Runs `run_cell(code, seed) -> exit code` in a child. What escapes it is a failure while it reported another one,
// most often for want of memory.
int run_in_child(const py::function& run_cell, const rocstar::Request& request, int memory_exit) {
  try {
    const py::bytes code(request.code);
    return run_cell(code, py::int_(request.seed ? *request.seed : fresh_seed())).cast<int>();
  } catch (const py::error_already_set& error) {
    return error.matches(PyExc_MemoryError) ? memory_exit : 1;
  } catch (const std::bad_alloc&) {
    return memory_exit;
  }
}

rocstar::Layers layers_from(bool seccomp, bool landlock, bool slot_uid, std::vector<std::string> readable_paths) {
  return {.seccomp = seccomp, .landlock = landlock, .slot_uid = slot_uid, .readable_paths = std::move(readable_paths)};
}

void serve(int fd, size_t max_live, const rocstar::Layers& layers, const py::function& run_cell, int memory_exit) {
  rocstar::Zygote zygote(layers);
  rocstar::Supervisor supervisor(rocstar::UniqueFd(fd), zygote, max_live, [&](const rocstar::Request& request) {
    return run_in_child(run_cell, request, memory_exit);
  });
  // The interpreter lock stays held: the zygote has one thread, and each child needs the lock at once.
  supervisor.run();
}

py::dict probe() {
  utsname system{};
  uname(&system);
  py::dict facts;
  facts["kernel"] = system.release;
  facts["machine"] = system.machine;
  facts["seccomp"] = rocstar::seccomp_available();
  facts["landlock_abi"] = rocstar::landlock_abi();
  return facts;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "rocstar's fork server: see csrc/supervise.h for the processes and pipes";
  py::class_<rocstar::Layers>(module, "Layers")
      .def(py::init(&layers_from), py::kw_only(), py::arg("seccomp"), py::arg("landlock"), py::arg("slot_uid"),
           py::arg("readable_paths"))
      .def_property_readonly("names", &rocstar::Layers::names);
  module.def("serve", &serve, py::arg("fd"), py::kw_only(), py::arg("max_live"), py::arg("layers"), py::arg("run_cell"),
             py::arg("memory_exit"));
  module.def("probe", &probe);
  module.def("die_with_parent", &rocstar::die_with_parent, py::arg("parent"));
  module.def("collapse_heap", &rocstar::collapse_heap);
  module.def("repair_utf8", [](const std::string& bytes) { return rocstar::repair_utf8(bytes); }, py::arg("bytes"));
}
