// Makes any bytes valid UTF-8.
#pragma once

#include <stddef.h>
#include <string>
#include <string_view>

namespace rocstar {

// Replaces every maximal ill-formed part by U+FFFD, as the Unicode standard (3.9, best practice) and
// Python's errors="replace" do. The result is at most three times as long as the input.
std::string repair_utf8(std::string_view bytes);

// The longest prefix of at most `limit` bytes that does not cut a valid code point in two.
std::string_view cut_utf8(std::string_view bytes, size_t limit);

}  // namespace rocstar
