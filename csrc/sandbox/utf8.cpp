#include "utf8.h"

#include <cstdint>
#include <cstring>

namespace rocstar {
namespace {

struct Lead {
  size_t length;              // bytes of the whole code point; 0 when this byte cannot lead
  unsigned char low = 0x80;   // bounds of the second byte: they exclude overlong forms, surrogates and
  unsigned char high = 0xBF;  // everything above U+10FFFF
};

Lead lead_of(unsigned char byte) {
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

struct Step {
  size_t length;  // bytes consumed
  bool valid;
};

Step step_at(std::string_view bytes, size_t at) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[at]));
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

// Length of the leading run of ASCII, eight bytes at a time: almost all output is nothing else.
size_t ascii_run(std::string_view bytes, size_t at) {
  size_t end = at;
  while (end + 8 <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + end, 8);
    if (word & 0x8080808080808080ULL) break;
    end += 8;
  }
  while (end < bytes.size() && static_cast<unsigned char>(bytes[end]) < 0x80) ++end;
  return end - at;
}

}  // namespace

std::string repair_utf8(std::string_view bytes) {
  std::string repaired;
  repaired.reserve(bytes.size());
  size_t valid_from = 0;
  for (size_t at = 0; at < bytes.size();) {
    at += ascii_run(bytes, at);
    if (at == bytes.size()) break;
    const Step step = step_at(bytes, at);
    if (!step.valid) {
      repaired.append(bytes.substr(valid_from, at - valid_from));
      repaired.append("\xEF\xBF\xBD");
      valid_from = at + step.length;
    }
    at += step.length;
  }
  repaired.append(bytes.substr(valid_from));
  return repaired;
}

namespace {

constexpr size_t kReplacement = 3;  // bytes of U+FFFD

// The place after the last step that keeps the repair of everything before it within `most`.
size_t fits_until(std::string_view bytes, size_t most) {
  size_t size = 0, at = 0;
  while (at < bytes.size()) {
    const size_t plain = ascii_run(bytes, at);
    if (size + plain > most) return at + (most - size);
    at += plain;
    size += plain;
    if (at == bytes.size()) break;
    const Step step = step_at(bytes, at);
    size += step.valid ? step.length : kReplacement;
    if (size > most) return at;
    at += step.length;
  }
  return at;
}

}  // namespace

std::string_view fitting_prefix(std::string_view bytes, size_t most) {
  return bytes.substr(0, fits_until(bytes, most));
}

std::string_view fitting_suffix(std::string_view bytes, size_t most) {
  const size_t size = repair_utf8(bytes).size();
  if (size <= most) return bytes;
  // What is left out at the front takes the rest, and a step more where that does not come out even.
  const size_t left_out = size - most;
  size_t at = fits_until(bytes, left_out);
  if (repair_utf8(bytes.substr(0, at)).size() < left_out) at += step_at(bytes, at).length;
  return bytes.substr(at);
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

}  // namespace rocstar
