// Between Python and the rest, of which only programs.cpp knows it besides: runs a zygote's loop, lets a child call
// back into the interpreter, and gives the pool the supervisor's frames as Python values.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/utsname.h>

#include <system_error>

#include "compact.h"
#include "cpp_child.h"
#include "directory_tree.h"
#include "landlock.h"
#include "programs.h"
#include "prompt_writer.h"
#include "protocol.h"
#include "python_memory.h"
#include "seccomp_notify.h"
#include "shell_child.h"
#include "utf8.h"
#include "zygote.h"

namespace py = pybind11;

namespace {

// What escapes `run` is a failure while it reported another one, most often for want of memory.
template <typename Run>
int exit_code_of(Run run) {
  try {
    return run();
  } catch (const py::error_already_set& error) {
    return error.matches(PyExc_MemoryError) ? rocstar::kMemoryExit : 1;
  } catch (const std::bad_alloc&) {
    return rocstar::kMemoryExit;
  }
}

int run_program(rocstar::Child& child, const rocstar::Programs& programs) {
  return exit_code_of([&] {
    const std::optional<rocstar::Cell> cell = child.next_cell();
    if (!cell) return 0;
    programs.place(false);
    return programs.run(cell->code, cell->seed);
  });
}

bool has_threads() {
  const auto threading = py::reinterpret_borrow<py::object>(PyImport_GetModule(py::str("threading").ptr()));
  return threading && threading.attr("active_count")().cast<int>() > 1;
}

// An interrupt that came when the cell was over already is not the next one's.
void forget_interrupt() {
  if (PyErr_CheckSignals() != 0) PyErr_Clear();
}

// Runs one cell and tells how it ended; its exit code if the process ends with it.
std::optional<int> run_session_cell(rocstar::Child& child, const rocstar::Cell& cell, const py::function& run_cell) {
  std::string value;
  bool exits = false;
  if (cell.after_interrupt) forget_interrupt();
  const int code = exit_code_of([&] {
    const auto seed = cell.seed ? py::object(py::int_(*cell.seed)) : py::none();
    const auto answer = run_cell(py::bytes(cell.code), seed).cast<std::tuple<int, std::string, bool>>();
    value = std::get<1>(answer);
    exits = std::get<2>(answer);
    return std::get<0>(answer);
  });
  if (exits) return code;
  child.reply(code, rocstar::Child::fit_value(std::move(value)));
  return std::nullopt;
}

// Serves cells until the supervisor is gone or a cell ends the process.
int run_session(rocstar::Child& child, const rocstar::Programs& programs, const py::function& run_cell) {
  child.has_threads = has_threads;
  return exit_code_of([&] {
    programs.place(true);
    while (const std::optional<rocstar::Cell> cell = child.next_cell()) {
      if (const auto code = run_session_cell(child, *cell, run_cell)) return *code;
    }
    return 0;
  });
}

// The interpreter lock stays held: the zygote has one thread, and each child needs the lock at once.
void serve(int fd, const rocstar::Layers& layers, const std::string& hello, const rocstar::Programs& programs,
           const py::function& run_session_cell) {
  rocstar::Zygote zygote(rocstar::UniqueFd(fd), layers);
  zygote.hello(hello);
  zygote.serve([&](rocstar::Child& child) {
    return child.session() ? run_session(child, programs, run_session_cell) : run_program(child, programs);
  });
}

// As `serve`, of C++ programs: no child runs Python. `command`: the compiler's path and its arguments.
void serve_cpp(int fd, const rocstar::Layers& layers, const std::vector<std::string>& command,
               const std::string& preload) {
  rocstar::Zygote zygote(rocstar::UniqueFd(fd), layers);
  zygote.hello("");
  zygote.serve([&](rocstar::Child& child) { return rocstar::run_cpp(child, command, preload); });
}

// As `serve`, of bash programs. `bash`: its path.
void serve_shell(int fd, const rocstar::Layers& layers, const std::string& bash, const std::string& preload) {
  rocstar::Zygote zygote(rocstar::UniqueFd(fd), layers);
  zygote.hello("");
  zygote.serve([&](rocstar::Child& child) { return rocstar::run_shell(child, bash, preload); });
}

constexpr size_t kLongTextBytes = 1 << 20;

py::object text(std::string_view bytes) {
  PyObject* made = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

void fill(PyObject* made, std::string_view bytes) {
  const int kind = PyUnicode_KIND(made);
  void* const data = PyUnicode_DATA(made);
  const py::gil_scoped_release others_run;  // nobody else has this text yet
  if (kind == PyUnicode_1BYTE_KIND) rocstar::decode_utf8(bytes, static_cast<uint8_t*>(data));
  if (kind == PyUnicode_2BYTE_KIND) rocstar::decode_utf8(bytes, static_cast<char16_t*>(data));
  if (kind == PyUnicode_4BYTE_KIND) rocstar::decode_utf8(bytes, static_cast<char32_t*>(data));
}

// Lets go of the interpreter's lock while it reads and writes: for a thread beside the loop. Python's own decoder
// keeps it for a millisecond of each megabyte, and for half a second of halves of pairs.
py::object long_text(std::string_view bytes, rocstar::Halves halves) {
  const auto shape = [&] {
    const py::gil_scoped_release others_run;
    return rocstar::shape_of_utf8(bytes, halves);
  }();
  if (!shape) return text(bytes);  // raises
  PyObject* const made = PyUnicode_New(static_cast<Py_ssize_t>(shape->length), shape->most);
  if (made == nullptr) throw py::error_already_set();
  fill(made, bytes);
  return py::reinterpret_steal<py::object>(made);
}

// A text of some size, as bytes that are no Python text yet.
class LongText {
 public:
  LongText(std::shared_ptr<const std::string> frame, std::string_view bytes)
      : frame_(std::move(frame)), bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }
  py::object read() const { return long_text(bytes_, rocstar::Halves::kNone); }

 private:
  std::shared_ptr<const std::string> frame_;
  std::string_view bytes_;
};

// What Python's bytes.decode("utf-8", "surrogatepass") gives.
py::object decode_text(const py::buffer& bytes) {
  const py::buffer_info info = bytes.request();
  if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1)) {
    throw py::type_error("a text is decoded from bytes that lie one after the other");
  }
  return long_text({static_cast<const char*>(info.ptr), static_cast<size_t>(info.size)}, rocstar::Halves::kTaken);
}

// `frame`: what the result lies in, if it is a long one.
py::tuple result_tuple(const rocstar::ResultView& result, const std::shared_ptr<const std::string>& frame) {
  using Flag = rocstar::Outcome::Flag;
  const py::object code = py::int_(result.code);
  const auto text = [&](std::string_view bytes) {
    return frame && bytes.size() >= kLongTextBytes ? py::cast(LongText(frame, bytes)) : ::text(bytes);
  };
  return py::make_tuple(
      static_cast<int>(rocstar::FrameType::kResult), result.id, static_cast<int>(result.status),
      result.signaled ? py::none() : code, result.signaled ? code : py::none(), text(result.out), text(result.err),
      (result.flags & Flag::kStdoutTruncated) != 0, (result.flags & Flag::kStderrTruncated) != 0,
      result.flags & Flag::kHasValue ? text(result.value) : py::none(), static_cast<double>(result.wall_us) / 1e6,
      static_cast<double>(result.cpu_us) / 1e6, result.peak_bytes);
}

// Frames of the supervisor as tuples that begin with the frame's type: a result with the fields of ExecResult in
// their order, anything else with its raw payload.
class ResultReader {
 public:
  py::list feed(const py::bytes& bytes) {
    reader_.feed(std::string_view(bytes));
    py::list frames;
    while (const std::optional<rocstar::Frame> frame = reader_.next()) {
      if (frame->type == rocstar::FrameType::kResult) {
        const rocstar::ResultView result = rocstar::decode_result(frame->payload);
        const bool is_long = frame->payload.size() >= rocstar::kLongFrameBytes;
        frames.append(result_tuple(result, is_long ? reader_.keep() : nullptr));
      } else {
        frames.append(py::make_tuple(static_cast<int>(frame->type), py::bytes(frame->payload)));
      }
    }
    return frames;
  }

 private:
  rocstar::FrameReader reader_;
};

py::dict probe() {
  utsname system{};
  uname(&system);
  py::dict facts;
  facts["kernel"] = system.release;
  facts["machine"] = system.machine;
  facts["seccomp"] = rocstar::seccomp_available();
  facts["user_notif"] = rocstar::notify_available();
  facts["landlock_abi"] = rocstar::landlock_abi();
  return facts;
}

constexpr std::pair<const char*, rocstar::PolicyOptions> kKinds[] = {
    {"plain", {}},
    {"scratch", {.scratch = true, .truncate = true}},
    {"session", {.scratch = true, .session = true, .truncate = true}},
    {"compiler", {.scratch = true, .truncate = true, .compiler = true}},
    {"program", {.scratch = true, .truncate = true, .program = true}},
    {"shell", {.scratch = true, .truncate = true, .shell = true}}};

// Every system call that some kind of child may make, by number, with what its arguments may be for each kind.
py::dict allowed_calls() {
  py::dict allowed;
  for (const auto& [kind, options] : kKinds) {
    for (const rocstar::Rule& rule : rocstar::child_policy(options)) {
      if (rule.action != rocstar::Rule::Action::kAllow) continue;
      const py::int_ number(rule.number);
      if (!allowed.contains(number)) allowed[number] = py::dict();
      allowed[number][kind] = rocstar::describe(rule);
    }
  }
  return allowed;
}

// The policy of each kind of child as one filter, but for the pid.
py::dict filters() {
  py::dict found;
  for (const auto& [kind, options] : kKinds) {
    const rocstar::SeccompFilter filter(rocstar::child_policy(options), rocstar::newest_known_syscall());
    const std::vector<sock_filter>& program = filter.program();
    found[kind] = py::bytes(reinterpret_cast<const char*>(program.data()), program.size() * sizeof(sock_filter));
  }
  return found;
}

rocstar::Layers layers_from(bool seccomp, bool notify, bool truncate, bool threads, bool processes, bool hides) {
  using rocstar::Counted;
  const Counted counted = processes ? Counted::kProcesses : threads ? Counted::kThreads : Counted::kNothing;
  return {.seccomp = seccomp, .notify = notify, .truncate = truncate, .counted = counted, .hides = hides};
}

py::object evaluate_or_raise(const py::object& source, const py::object& names, const py::object& file,
                             const py::object& tree) {
  py::object value = rocstar::evaluate(source, names, file, tree);
  if (!value) throw py::error_already_set();
  return value;
}

py::object call_alone_or_raise(const py::object& function, const py::args& arguments) {
  py::object value = rocstar::call_alone(function, arguments);
  if (!value) throw py::error_already_set();
  return value;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "rocstar's fork server: see csrc/sandbox/supervise.h for the processes and pipes";
  py::class_<rocstar::Layers>(module, "Layers")
      .def(py::init(&layers_from), py::kw_only(), py::arg("seccomp"), py::arg("notify"), py::arg("truncate"),
           py::arg("threads") = false, py::arg("processes") = false, py::arg("hides") = false);
  py::class_<LongText>(module, "LongText").def("__len__", &LongText::size).def("read", &LongText::read);
  py::class_<ResultReader>(module, "ResultReader").def(py::init<>()).def("feed", &ResultReader::feed, py::arg("bytes"));
  py::class_<rocstar::Programs>(module, "Programs")
      .def(py::init<const py::module_&>(), py::arg("cell"))
      .def(
          "run",
          [](const rocstar::Programs& programs, const std::string& code, std::optional<uint64_t> seed) {
            return programs.run(code, seed);
          },
          py::arg("code"), py::arg("seed"));
  module.def("evaluate", &evaluate_or_raise, py::arg("source"), py::arg("names"), py::arg("file"), py::arg("tree"));
  module.def("make_prompt_writer", &rocstar::make_prompt_writer, py::arg("raw"));
  module.def("make_places", &rocstar::make_places, py::arg("kept"));
  module.def(
      "fit_value", [](std::string value) { return py::bytes(rocstar::Child::fit_value(std::move(value))); },
      py::arg("value"));
  module.def("call_alone", &call_alone_or_raise, py::arg("function"));
  module.def("serve", &serve, py::arg("fd"), py::kw_only(), py::arg("layers"), py::arg("hello"), py::arg("programs"),
             py::arg("run_session_cell"));
  module.def("serve_cpp", &serve_cpp, py::arg("fd"), py::kw_only(), py::arg("layers"), py::arg("command"),
             py::arg("preload") = "");
  module.def("serve_shell", &serve_shell, py::arg("fd"), py::kw_only(), py::arg("layers"), py::arg("bash"),
             py::arg("preload") = "");
  module.def("say_fatal", &rocstar::say_fatal, py::arg("fd"), py::arg("json"));
  module.def("say_at", &rocstar::say_at, py::arg("fd"), py::arg("what"));
  module.def("probe", &probe);
  module.def("allowed_calls", &allowed_calls);
  module.def("filters", &filters);
  module.def("die_with_parent", &rocstar::die_with_parent, py::arg("parent"));
  module.def("use_up_free_objects", &rocstar::use_up_free_objects);
  module.def("use_up_free_memory", &rocstar::use_up_free_memory);
  module.def("put_first_objects_together", &rocstar::put_first_objects_together);
  module.def("compact_memory", &rocstar::compact_memory);
  module.def("collapse_heap", &rocstar::collapse_heap);
  module.def("remove_tree", &rocstar::remove_tree, py::arg("path"), py::call_guard<py::gil_scoped_release>());
  module.def("repair_utf8", [](const std::string& bytes) { return rocstar::repair_utf8(bytes); }, py::arg("bytes"));
  module.attr("MOST_SHELL_BYTES") = rocstar::kMostShellBytes;
  module.def("decode_text", &decode_text, py::arg("bytes"));
  module.attr("LONG_TEXT_BYTES") = kLongTextBytes;
  module.attr("MEMORY_EXIT") = rocstar::kMemoryExit;
}
