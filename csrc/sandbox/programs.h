// How a program of Python runs in its child: cell.run_cell, in fewer pages.
//
// Theory of operation. A child pays some 2 us for each page that it is the first to change, and Python code changes
// pages by running: each call counts references of a function and of its code, each look into a module those of the
// module and of what is found. Half of what a print changed were pages of that kind, for the sake of our own code
// around it. So that code is here: it has looked everything up before the first fork, and calls nothing but what the
// program asks for. What is not usual (files, random numbers, values, errors, threads) stays with cell.py.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rocstar {

// Runs the statements of `source`; the value of a trailing expression, None when there is none or a ';' hides it.
//
// A last line that is a call of its own is compiled as text, for a syntax tree made of Python objects costs a tenth of
// a millisecond in pages alone. Whatever else it may be makes one of the compilations fail: then, and for any other
// last line, `tree` is asked, with the same arguments. Null, with Python's error set, for whatever the program raises.
// The program has no frame of ours below it, as with `call_alone`, by which `tree` runs what it compiles.
pybind11::object evaluate(const pybind11::object& source, const pybind11::object& names, const pybind11::object& file,
                          const pybind11::object& tree);

// What `function` gives, called with no frame of ours below it: what a program finds of its stack is its own, as under
// the interpreter alone. Null, with Python's error set, for whatever it raises.
pybind11::object call_alone(const pybind11::object& function, const pybind11::args& arguments);

// Runs programs in a zygote's children, one each.
class Programs {
 public:
  // `cell`: the module sandbox/child/cell.py, with its streams open. Created in the zygote with the state of the module
  // and the interpreter at that time.
  explicit Programs(const pybind11::module_& cell);

  // In a new child: what names its directory. sys.path[0], HOME and TMPDIR, and of a program, which is a script, also
  // `__file__` and sys.argv[0]. A session is no script, as a notebook is none.
  void place(bool session) const;

  // The exit code for this process. Throws error_already_set where the report of an error failed itself.
  int run(const std::string& code, std::optional<uint64_t> seed) const;

 private:
  bool is_usual(const std::string& code) const;
  int run_source(const pybind11::object& source) const;
  bool has_value_told(const pybind11::object& source) const;
  int finish(int exit_code) const;
  bool has_own_streams() const;

  std::vector<std::string> unusual_words_;
  pybind11::object names_, file_;
  pybind11::list source_;
  pybind11::object run_cell_, evaluate_tree_, tell_, forget_, show_figures_, ended_by_, finish_, flush_;
  pybind11::dict threading_;
  pybind11::object num_exit_handlers_;
  pybind11::dict modules_, sys_;
  pybind11::object pylab_name_, flush_name_, threads_name_;
  pybind11::object stream_names_[4], streams_[2];
  pybind11::list path_, arguments_;
  pybind11::dict environment_;
  pybind11::object script_name_, home_name_, temporary_name_;
};

// Of a zygote: has what C code reads of HOME and TMPDIR lie where `Programs::place` writes it, and the library of
// places (places.cpp), where that is loaded, read it there. `kept`: folders that stay what they are.
void make_places(const std::vector<std::string>& kept);

// 64 bits of the kernel's. Throws std::system_error.
uint64_t fresh_seed();

}  // namespace rocstar
