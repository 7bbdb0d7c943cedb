#include "programs.h"

#include <dlfcn.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace py = pybind11;

namespace rocstar {
namespace {

constexpr char kPackedFiles = '\xff';     // files.MARK, with which no UTF-8 begins
constexpr char kScript[] = "program.py";  // script.NAME

// As the C library's environment holds them: what a child writes there lies on one page.
constexpr size_t kHomeName = 5, kTemporaryName = 7, kMostDirectory = 1024;
char home_word[kHomeName + kMostDirectory] = "HOME=", temporary_word[kTemporaryName + kMostDirectory] = "TMPDIR=";

constexpr std::string_view kSpace = " \t\n\v\f\r\x1c\x1d\x1e\x1f";

py::object owned(PyObject* object) { return py::reinterpret_steal<py::object>(object); }

py::object interned(const char* text) { return owned(PyUnicode_InternFromString(text)); }

// As compile() compiles a text: null, with the error set, if it cannot be.
py::object compiled(const std::string& text, const py::object& file, int start) {
  PyCompilerFlags flags{};
  flags.cf_flags = PyCF_SOURCE_IS_UTF8 | PyCF_IGNORE_COOKIE;
  flags.cf_feature_version = PY_MINOR_VERSION;
  return owned(Py_CompileStringObject(text.c_str(), file.ptr(), start, &flags, -1));
}

// Forgets an error of a compilation, which the syntax tree may not have, or has better.
bool forget_compilation() {
  for (PyObject* const kind :
       {PyExc_SyntaxError, PyExc_ValueError, PyExc_OverflowError, PyExc_MemoryError, PyExc_RecursionError}) {
    if (PyErr_ExceptionMatches(kind)) {
      PyErr_Clear();
      return true;
    }
  }
  return false;
}

// Where the last line begins and ends, if it looks like a call of its own.
struct LastLine {
  size_t begin, end;
};

std::optional<LastLine> last_call(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string_view::npos || text[last] != ')') return {};
  const size_t before = text.rfind('\n', last);
  const size_t begin = before == std::string_view::npos ? 0 : before + 1;
  const auto first = static_cast<unsigned char>(text[begin]);
  const bool is_name = first < 0x80 && (std::isalpha(first) != 0 || first == '_');
  if (!is_name || text.substr(begin, last - begin).find(';') != std::string_view::npos) return {};
  return LastLine{begin, last + 1};
}

// Where the interpreter keeps the frame that runs. Null where it is not known to keep it so.
auto running_frame() {
#if PY_VERSION_HEX >= 0x030E0000
  return static_cast<void**>(nullptr);
#elif PY_VERSION_HEX >= 0x030D0000
  return &PyThreadState_Get()->current_frame;
#else
  return &PyThreadState_Get()->cframe->current_frame;
#endif
}

// While it lives, what is run has no frame of ours below it: as in a thread of its own, where a walk through the stack
// ends at the program's first frame.
class NoFramesBelow {
 public:
  NoFramesBelow() : place_(running_frame()), frame_(place_ == nullptr ? nullptr : std::exchange(*place_, nullptr)) {}
  ~NoFramesBelow() {
    if (place_ != nullptr) *place_ = frame_;
  }
  NoFramesBelow(const NoFramesBelow&) = delete;
  NoFramesBelow& operator=(const NoFramesBelow&) = delete;

 private:
  decltype(running_frame()) const place_;
  std::remove_pointer_t<decltype(running_frame())> const frame_;
};

// What was raised, with its traceback.
py::object take_error() {
#if PY_VERSION_HEX >= 0x030C0000
  return owned(PyErr_GetRaisedException());
#else
  PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &value, &trace);
  PyErr_NormalizeException(&kind, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(kind);
  Py_XDECREF(trace);
  return owned(value);
#endif
}

// As the interpreter does on its way out: a stream that the program has replaced or closed is left alone.
void flush(const py::object& stream, const py::object& name) {
  if (owned(PyObject_CallMethodNoArgs(stream.ptr(), name.ptr()))) return;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
    throw py::error_already_set();
  }
  PyErr_Clear();
}

}  // namespace

void make_places(const std::vector<std::string>& kept) {
  putenv(home_word);
  putenv(temporary_word);
  using Places = void(const char*, const char* const*, size_t);
  auto* const places = reinterpret_cast<Places*>(dlsym(RTLD_DEFAULT, "rocstar_places"));
  if (places == nullptr) return;
  static std::vector<std::string> folders;
  static std::vector<const char*> texts;
  folders = kept;
  texts.clear();
  for (const std::string& folder : folders) texts.push_back(folder.c_str());
  places(home_word + kHomeName, texts.data(), texts.size());
}

uint64_t fresh_seed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return seed;
}

py::object evaluate(const py::object& source, const py::object& names, const py::object& file, const py::object& tree) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(source.ptr(), &size);
  if (bytes == nullptr) PyErr_Clear();  // a lone surrogate, of which the tree's compilation tells
  const std::string_view text(bytes, bytes == nullptr ? 0 : static_cast<size_t>(size));
  const bool is_text = text.find('\0') == std::string_view::npos;
  if (const auto line = is_text ? last_call(text) : std::nullopt) {
    const std::string_view above = text.substr(0, line->begin);
    const auto lines = static_cast<size_t>(std::count(above.begin(), above.end(), '\n'));
    std::string padded(lines, '\n');  // so that it has its own line number
    padded += text.substr(line->begin, line->end - line->begin);
    // The tail first: compiling what is above may warn, and should the tail be none, the tree's compilation warns.
    const py::object tail = compiled(padded, file, Py_eval_input);
    py::object body;
    if (tail && !above.empty()) body = compiled(std::string(above), file, Py_file_input);
    if (tail && (body || above.empty())) {
      const NoFramesBelow alone;
      if (body && !owned(PyEval_EvalCode(body.ptr(), names.ptr(), names.ptr()))) return {};
      return owned(PyEval_EvalCode(tail.ptr(), names.ptr(), names.ptr()));
    }
    if (!forget_compilation()) return {};
  }
  return owned(PyObject_CallFunctionObjArgs(tree.ptr(), source.ptr(), names.ptr(), file.ptr(), nullptr));
}

py::object call_alone(const py::object& function, const py::args& arguments) {
  const NoFramesBelow alone;
  return owned(PyObject_CallObject(function.ptr(), arguments.ptr()));
}

Programs::Programs(const py::module_& cell)
    : names_(cell.attr("MAIN").attr("__dict__")),
      file_(py::str(cell.attr("CELL").cast<std::string>())),  // a copy, beside the rest
      source_(cell.attr("source_of_program")()),
      run_cell_(cell.attr("run_cell")),
      evaluate_tree_(cell.attr("evaluate_tree")),
      tell_(cell.attr("tell")),
      forget_(cell.attr("forget")),
      show_figures_(cell.attr("display").attr("show_figures")),
      ended_by_(cell.attr("ended_by")),
      finish_(cell.attr("finish")),
      flush_(cell.attr("flush")),
      threading_(py::module_::import("threading").attr("__dict__")),
      num_exit_handlers_(py::module_::import("atexit").attr("_ncallbacks")),
      modules_(py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict())),
      sys_(py::module_::import("sys").attr("__dict__")),
      pylab_name_(interned("matplotlib._pylab_helpers")),
      flush_name_(interned("flush")),
      threads_name_(interned("_active")),
      stream_names_{interned("stdout"), interned("__stdout__"), interned("stderr"), interned("__stderr__")},
      streams_{sys_["stdout"], sys_["stderr"]},
      path_(sys_["path"]),
      arguments_(sys_["argv"]),
      environment_(py::module_::import("os").attr("environ").attr("_data")),
      script_name_(interned("__file__")),
      home_name_(py::bytes("HOME")),
      temporary_name_(py::bytes("TMPDIR")) {
  for (const py::handle word : cell.attr("UNUSUAL_WORDS")) unusual_words_.push_back(word.cast<std::string>());
}

void Programs::place(bool session) const {
  char* const directory = home_word + kHomeName;
  if (getcwd(directory, kMostDirectory) == nullptr) {
    *directory = '\0';
    return;
  }
  const size_t length = std::strlen(directory);
  std::memcpy(temporary_word + kTemporaryName, directory, length + 1);
  const auto text = owned(PyUnicode_DecodeFSDefaultAndSize(directory, static_cast<Py_ssize_t>(length)));
  const auto bytes = owned(PyBytes_FromStringAndSize(directory, static_cast<Py_ssize_t>(length)));
  if (!text || !bytes || PyList_SetItem(path_.ptr(), 0, py::object(text).release().ptr()) != 0 ||
      PyDict_SetItem(environment_.ptr(), home_name_.ptr(), bytes.ptr()) != 0 ||
      PyDict_SetItem(environment_.ptr(), temporary_name_.ptr(), bytes.ptr()) != 0) {
    throw py::error_already_set();
  }
  if (session) {
    if (PyDict_DelItem(names_.ptr(), script_name_.ptr()) != 0) throw py::error_already_set();
    return;
  }
  const auto script = owned(PyUnicode_FromFormat("%U/%s", text.ptr(), kScript));
  if (!script || PyDict_SetItem(names_.ptr(), script_name_.ptr(), script.ptr()) != 0 ||
      PyList_SetItem(arguments_.ptr(), 0, py::object(script).release().ptr()) != 0) {
    throw py::error_already_set();
  }
}

int Programs::run(const std::string& code, std::optional<uint64_t> seed) const {
  if (is_usual(code)) {
    if (const auto source = owned(PyUnicode_DecodeUTF8(code.data(), static_cast<Py_ssize_t>(code.size()), nullptr))) {
      return finish(run_source(source));
    }
    PyErr_Clear();  // no UTF-8, or no memory: run_cell tells
  }
  return run_cell_(py::bytes(code), seed ? *seed : fresh_seed()).cast<int>();
}

bool Programs::is_usual(const std::string& code) const {
  if (code.starts_with(kPackedFiles)) return false;
  return std::none_of(unusual_words_.begin(), unusual_words_.end(),
                      [&code](const std::string& word) { return code.find(word) != std::string::npos; });
}

int Programs::run_source(const py::object& source) const {
  if (has_value_told(source)) return 0;
  return ended_by_(take_error()).cast<int>();
}

// The program ran to its end, and what it says at that has been said; else Python's error is set.
bool Programs::has_value_told(const py::object& source) const {
  if (PyList_SetItem(source_.ptr(), 0, py::object(source).release().ptr()) != 0) return false;
  py::object value = evaluate(source, names_, file_, evaluate_tree_);
  if (!value) return false;
  if (!value.is_none() && !owned(PyObject_CallOneArg(tell_.ptr(), value.ptr()))) return false;
  if (PyCoro_CheckExact(value.ptr())) {
    py::list held;
    held.append(std::exchange(value, py::none()));
    if (!owned(PyObject_CallOneArg(forget_.ptr(), held.ptr()))) return false;
  }
  if (PyDict_GetItemWithError(modules_.ptr(), pylab_name_.ptr()) == nullptr) return PyErr_Occurred() == nullptr;
  return static_cast<bool>(owned(PyObject_CallNoArgs(show_figures_.ptr())));
}

int Programs::finish(int exit_code) const {
  const auto handlers = owned(PyObject_CallNoArgs(num_exit_handlers_.ptr()));
  if (!handlers) throw py::error_already_set();
  PyObject* const threads = PyDict_GetItemWithError(threading_.ptr(), threads_name_.ptr());  // another if reloaded
  const bool is_alone = threads != nullptr && PyDict_Check(threads) && PyDict_Size(threads) <= 1;
  if (!is_alone || PyLong_AsLong(handlers.ptr()) != 0) return finish_(exit_code).cast<int>();
  if (has_own_streams()) {
    for (const py::object& stream : streams_) flush(stream, flush_name_);
  } else {
    flush_();
  }
  return exit_code;
}

bool Programs::has_own_streams() const {
  for (size_t i = 0; i < std::size(stream_names_); ++i) {
    if (PyDict_GetItemWithError(sys_.ptr(), stream_names_[i].ptr()) != streams_[i / 2].ptr()) return false;
  }
  return true;
}

}  // namespace rocstar
