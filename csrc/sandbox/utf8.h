// Makes any bytes valid UTF-8.
#pragma once

#include <stddef.h>
#include <string>
#include <string_view>

namespace rocstar {

// Replaces every maximal ill-formed part by U+FFFD, as the Unicode standard (3.9, best practice) and
// Python's errors="replace" do. The result is at most three times as long as the input.
std::string repair_utf8(std::string_view bytes);

// Without the code point that the end of `bytes` cuts in two, if it does.
std::string_view cut_utf8(std::string_view bytes);

// Without the rest of a code point that the start of `bytes` cuts in two, if it does.
std::string_view skip_partial_utf8(std::string_view bytes);

// The longest part from the start, or to the end, whose repair is at most `most` bytes long.
std::string_view fitting_prefix(std::string_view bytes, size_t most);
std::string_view fitting_suffix(std::string_view bytes, size_t most);

}  // namespace rocstar
