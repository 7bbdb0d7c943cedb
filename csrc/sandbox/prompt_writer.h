// An unbuffered writer: the output of a program before it is killed often explains the kill.
#pragma once

#include <pybind11/pybind11.h>

namespace rocstar {

// An io.BufferedWriter on `raw` that writes at once what is written to it, a part of a line too: text that is still in
// the process is lost when that is killed. After kPrompt such writes, which a program of many small parts exceeds, it
// writes a part of a line when the last write was a millisecond ago; the rest goes with the next line, or at the end.
pybind11::object make_prompt_writer(const pybind11::object& raw);

}  // namespace rocstar
