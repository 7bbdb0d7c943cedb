// Makes any bytes valid UTF-8.
#pragma once

#include <stddef.h>
#include <optional>
#include <string>
#include <string_view>

namespace rocstar {

// Replaces every maximal ill-formed part by U+FFFD, as the Unicode standard (3.9, best practice) and
// Python's errors="replace" do. The result is at most three times as long as the input.
std::string repair_utf8(std::string_view bytes);

// The same if it is at most `most` bytes long: looks no further than needed.
std::optional<std::string> repair_within(std::string_view bytes, size_t most);

// Without the code point that the end of `bytes` cuts in two, if it does.
std::string_view cut_utf8(std::string_view bytes);

// Without the rest of a code point that the start of `bytes` cuts in two, if it does.
std::string_view skip_partial_utf8(std::string_view bytes);

// The longest part from the start, or to the end, whose repair is at most `most` bytes long.
std::string_view fitting_prefix(std::string_view bytes, size_t most);
std::string_view fitting_suffix(std::string_view bytes, size_t most);

// The repair of that part, which `bytes` is after it.
std::string repair_prefix(std::string_view& bytes, size_t most);
std::string repair_suffix(std::string_view& bytes, size_t most);

// How many code points a text has, and the most that one of them may be: 0x7F, 0xFF, 0xFFFF or 0x10FFFF.
struct Utf8Shape {
  size_t length;
  char32_t most;
};

// Whether halves of surrogate pairs are taken, as Python's errors="surrogatepass" does.
enum class Halves { kNone, kTaken };

// Nothing for bytes that are no UTF-8.
std::optional<Utf8Shape> shape_of_utf8(std::string_view bytes, Halves halves = Halves::kNone);

// The code points of bytes that have a shape, each as a Unit, in which the most of them fits. Unit: uint8_t, char16_t
// or char32_t.
template <typename Unit>
void decode_utf8(std::string_view bytes, Unit* to);

}  // namespace rocstar
