// A C++ program between its compilation and its start.
#pragma once

#include "process.h"

namespace rocstar {

struct Compiled {
  std::shared_ptr<Home> home;  // emptied
  UniqueFd program;            // executable, and without a name
};

}  // namespace rocstar
