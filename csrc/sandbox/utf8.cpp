#include "utf8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace rocstar {
namespace {

struct Lead {
  unsigned char length = 0;   // bytes of the whole code point; 0 when this byte cannot lead
  unsigned char low = 0x80;   // bounds of the second byte: they exclude overlong forms, surrogates and
  unsigned char high = 0xBF;  // everything above U+10FFFF
};

constexpr Lead look_for_lead(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

constexpr std::array<Lead, 256> make_leads() {
  std::array<Lead, 256> leads;
  for (size_t byte = 0; byte < leads.size(); ++byte) leads[byte] = look_for_lead(static_cast<unsigned char>(byte));
  return leads;
}

constexpr std::array<Lead, 256> kLeads = make_leads();

const Lead& lead_of(unsigned char byte) { return kLeads[byte]; }

struct Step {
  size_t length;  // bytes consumed
  bool valid;
};

inline Step step_at(std::string_view bytes, size_t at) {
  const auto first = static_cast<unsigned char>(bytes[at]);
  if (first < 0x80) return {1, true};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {1, false};
  size_t have = 1;
  while (have < lead.length && at + have < bytes.size()) {
    const auto byte = static_cast<unsigned char>(bytes[at + have]);
    const unsigned char low = have == 1 ? lead.low : 0x80;
    const unsigned char high = have == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) break;
    ++have;
  }
  return {have, have == lead.length};
}

static_assert(std::endian::native == std::endian::little, "which byte of eight is not ASCII is told by its place");
constexpr uint64_t kHighBits = 0x8080808080808080ULL;

// Length of the leading run of ASCII, eight bytes at a time: almost all output is nothing else.
size_t ascii_run(std::string_view bytes, size_t at) {
  size_t end = at;
  while (end + 8 <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + end, 8);
    if (const uint64_t others = word & kHighBits) return end + static_cast<size_t>(std::countr_zero(others)) / 8 - at;
    end += 8;
  }
  while (end < bytes.size() && static_cast<unsigned char>(bytes[end]) < 0x80) ++end;
  return end - at;
}

// As ascii_run, of what ends before `end`.
size_t ascii_run_before(std::string_view bytes, size_t end) {
  size_t begin = end;
  while (begin >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + begin - 8, 8);
    if (const uint64_t others = word & kHighBits)
      return end - begin + static_cast<size_t>(std::countl_zero(others)) / 8;
    begin -= 8;
  }
  while (begin > 0 && static_cast<unsigned char>(bytes[begin - 1]) < 0x80) --begin;
  return end - begin;
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

size_t repaired_size(const Step& step) { return step.valid ? step.length : kReplacement.size(); }

// A part whose repair is within a bound, and how long that is.
struct Fitting {
  std::string_view part;
  size_t size = 0;
  bool valid = true;  // as it is
};

Fitting longest_prefix(std::string_view bytes, size_t most) {
  size_t at = 0, size = 0;
  bool valid = true;
  while (at < bytes.size()) {
    if (static_cast<unsigned char>(bytes[at]) < 0x80) {
      const size_t plain = std::min(ascii_run(bytes, at), most - size);
      if (plain == 0) break;
      at += plain;
      size += plain;
      continue;
    }
    const Step step = step_at(bytes, at);
    if (repaired_size(step) > most - size) break;
    at += step.length;
    size += repaired_size(step);
    valid = valid && step.valid;
  }
  return {bytes.substr(0, at), size, valid};
}

// The last step before `end`, which is the end of one. No byte that can lead, and no ASCII, is ever inside of a step.
Step step_before(std::string_view bytes, size_t end) {
  constexpr size_t kLongest = 4;
  for (size_t length = 1; length <= std::min(end, kLongest); ++length) {
    if ((static_cast<unsigned char>(bytes[end - length]) & 0xC0) == 0x80) continue;
    const Step step = step_at(bytes, end - length);
    if (step.length == length) return step;
    break;
  }
  return {1, false};
}

Fitting longest_suffix(std::string_view bytes, size_t most) {
  size_t begin = bytes.size(), size = 0;
  bool valid = true;
  while (begin > 0) {
    const size_t plain = std::min(ascii_run_before(bytes, begin), most - size);
    begin -= plain;
    size += plain;
    if (begin == 0) break;
    const Step step = step_before(bytes, begin);
    if (repaired_size(step) > most - size) break;
    begin -= step.length;
    size += repaired_size(step);
    valid = valid && step.valid;
  }
  return {bytes.substr(begin), size, valid};
}

std::string repair(const Fitting& found) {
  const std::string_view bytes = found.part;
  if (found.valid) return std::string(bytes);
  std::string repaired;
  repaired.reserve(found.size);
  size_t valid_from = 0;
  const auto keep_until = [&](size_t end) { repaired.append(bytes, valid_from, end - valid_from); };
  for (size_t at = 0; at < bytes.size();) {
    if (static_cast<unsigned char>(bytes[at]) < 0x80) {
      at += ascii_run(bytes, at);
      continue;
    }
    const Step step = step_at(bytes, at);
    if (!step.valid) {
      keep_until(at);
      repaired += kReplacement;
      valid_from = at + step.length;
    }
    at += step.length;
  }
  keep_until(bytes.size());
  return repaired;
}

}  // namespace

std::string repair_utf8(std::string_view bytes) { return *repair_within(bytes, SIZE_MAX); }

std::optional<std::string> repair_within(std::string_view bytes, size_t most) {
  const Fitting found = longest_prefix(bytes, most);
  if (found.part.size() < bytes.size()) return std::nullopt;
  return repair(found);
}

std::string_view fitting_prefix(std::string_view bytes, size_t most) { return longest_prefix(bytes, most).part; }
std::string_view fitting_suffix(std::string_view bytes, size_t most) { return longest_suffix(bytes, most).part; }

std::string repair_prefix(std::string_view& bytes, size_t most) {
  const Fitting found = longest_prefix(bytes, most);
  bytes = found.part;
  return repair(found);
}

std::string repair_suffix(std::string_view& bytes, size_t most) {
  const Fitting found = longest_suffix(bytes, most);
  bytes = found.part;
  return repair(found);
}

std::string_view cut_utf8(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t at = bytes.size() - back;
    const size_t length = lead_of(static_cast<unsigned char>(bytes[at])).length;
    if (length == 0) continue;  // a continuation byte: its lead is further back
    return length > back && step_at(bytes, at).length == back ? bytes.substr(0, at) : bytes;
  }
  return bytes;
}

std::string_view skip_partial_utf8(std::string_view bytes) {
  size_t skip = 0;
  while (skip < 3 && skip < bytes.size() && (static_cast<unsigned char>(bytes[skip]) & 0xC0) == 0x80) ++skip;
  return bytes.substr(skip);
}

namespace {

// Of a valid step, by its leading byte and its other ones.
char32_t code_point(std::string_view step) {
  const auto lead = static_cast<unsigned char>(step[0]);
  char32_t found = step.size() == 1 ? lead : lead & (0x7F >> step.size());
  for (const char byte : step.substr(1)) found = found << 6 | (static_cast<unsigned char>(byte) & 0x3F);
  return found;
}

char32_t most_of(char32_t largest) {
  return largest <= 0x7F ? 0x7F : largest <= 0xFF ? 0xFF : largest <= 0xFFFF ? 0xFFFF : 0x10FFFF;
}

}  // namespace

namespace {

constexpr size_t kHalf = 3;  // bytes of half a pair

bool is_half(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t index) { return static_cast<unsigned char>(bytes[at + index]); };
  return at + kHalf <= bytes.size() && byte(0) == 0xED && (byte(1) & 0xE0) == 0xA0 && (byte(2) & 0xC0) == 0x80;
}

}  // namespace

std::optional<Utf8Shape> shape_of_utf8(std::string_view bytes, Halves halves) {
  size_t length = 0;
  char32_t largest = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t plain = ascii_run(bytes, at);
    length += plain;
    at += plain;
    if (at == bytes.size()) break;
    Step step = step_at(bytes, at);
    if (!step.valid) {
      if (halves == Halves::kNone || !is_half(bytes, at)) return std::nullopt;
      step = {kHalf, true};
    }
    largest = std::max(largest, code_point(bytes.substr(at, step.length)));
    at += step.length;
    ++length;
  }
  return Utf8Shape{length, most_of(largest)};
}

template <typename Unit>
void decode_utf8(std::string_view bytes, Unit* to) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t plain = ascii_run(bytes, at);
    to = std::copy_n(reinterpret_cast<const unsigned char*>(bytes.data()) + at, plain, to);
    at += plain;
    if (at == bytes.size()) break;
    const size_t length = lead_of(static_cast<unsigned char>(bytes[at])).length;
    *to++ = static_cast<Unit>(code_point(bytes.substr(at, length)));
    at += length;
  }
}

template void decode_utf8(std::string_view, uint8_t*);
template void decode_utf8(std::string_view, char16_t*);
template void decode_utf8(std::string_view, char32_t*);

}  // namespace rocstar
