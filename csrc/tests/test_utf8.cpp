#include "utf8.h"

#include <random>

#include "check.h"

using rocstar::cut_utf8;
using rocstar::repair_utf8;
using rocstar::skip_partial_utf8;

namespace {

#define BAD "\xEF\xBF\xBD"

void valid_text_is_left_alone() {
  for (const char* text : {"", "a", "ascii, longer than eight bytes", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                           "\xED\x9F\xBF", "\xEE\x80\x80", "\xF4\x8F\xBF\xBF", "\xC2\x80"}) {
    CHECK(repair_utf8(text) == text);
  }
  const std::string with_nul("a\0b", 3);
  CHECK(repair_utf8(with_nul) == with_nul);
}

void each_ill_formed_part_becomes_one_mark() {
  CHECK(repair_utf8("\xFF") == BAD);
  CHECK(repair_utf8("a\x80z") == "a" BAD "z");
  CHECK(repair_utf8("\xC0\xAF") == BAD BAD);                  // overlong
  CHECK(repair_utf8("\xE0\x80\x80") == BAD BAD BAD);          // overlong
  CHECK(repair_utf8("\xED\xA0\x80") == BAD BAD BAD);          // a surrogate
  CHECK(repair_utf8("\xF4\x90\x80\x80") == BAD BAD BAD BAD);  // above U+10FFFF
  CHECK(repair_utf8("\xE2\x82") == BAD);                      // cut short
  CHECK(repair_utf8("\xE2\x82z") == BAD "z");
  CHECK(repair_utf8("\xF0\x9F\x98\xE2\x82\xAC") == BAD "\xE2\x82\xAC");
}

void a_cut_never_splits_a_code_point() {
  CHECK(cut_utf8("abc") == "abc" && cut_utf8("").empty());
  const std::string text = "x\xE2\x82\xAC";
  CHECK(cut_utf8(text) == text);
  CHECK(cut_utf8(text.substr(0, 2)) == "x" && cut_utf8(text.substr(0, 3)) == "x");
  const std::string smile = "\xF0\x9F\x98\x80";
  for (size_t length = 0; length < 4; ++length) CHECK(cut_utf8(smile.substr(0, length)).empty());
  CHECK(cut_utf8("\x80\x80\x80\x80\x80").size() == 5);  // nothing valid to protect
  CHECK(cut_utf8("\xE2"
                 "A") ==
        "\xE2"
        "A");
}

void a_tail_starts_with_a_whole_code_point() {
  const std::string text = "\xF0\x9F\x98\x80!";
  for (size_t from = 1; from < 4; ++from) CHECK(skip_partial_utf8(std::string_view(text).substr(from)) == "!");
  CHECK(skip_partial_utf8(text) == text);
  CHECK(skip_partial_utf8("\x80\x80\x80\x80").size() == 1);  // no code point has so many
}

std::u32string code_points(const std::string& text, size_t length) {
  std::u32string found(length, U'?');
  rocstar::decode_utf8(text, found.data());
  return found;
}

void code_points_come_out_one_by_one() {
  struct Case {
    std::string text;
    std::u32string points;
    char32_t most;
  };
  const Case cases[] = {{"", U"", 0x7F},
                        {"ascii, longer than eight bytes\x7F", U"ascii, longer than eight bytes\x7F", 0x7F},
                        {"eight by\xC2\x80\xC3\xBF", U"eight by\u0080\u00ff", 0xFF},
                        {"\xC4\x80, then plain text", U"\u0100, then plain text", 0xFFFF},
                        {"\xE0\xA0\x80\xEF\xBF\xBF\xC2\xA0", U"\u0800\uffff\u00a0", 0xFFFF},
                        {"a\xF0\x90\x80\x80\xF4\x8F\xBF\xBFz", U"a\U00010000\U0010FFFFz", 0x10FFFF}};
  for (const Case& one : cases) {
    const auto shape = rocstar::shape_of_utf8(one.text);
    CHECK(shape && shape->length == one.points.size() && shape->most == one.most);
    CHECK(code_points(one.text, shape->length) == one.points);
  }
  std::string latin(3, '?');
  rocstar::decode_utf8("a\xC3\xA9z", reinterpret_cast<uint8_t*>(latin.data()));
  CHECK(latin == "a\xE9z");
}

void what_is_no_utf8_has_no_shape() {
  for (const char* text : {"\xFF", "a\x80z", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "plain \xE2\x82"}) {
    CHECK(!rocstar::shape_of_utf8(text));
  }
}

void halves_of_pairs_are_taken_where_they_may_be() {
  const std::string halves = "a\xED\xA0\x80\xED\xBF\xBF!";
  const auto shape = rocstar::shape_of_utf8(halves, rocstar::Halves::kTaken);
  CHECK(shape && shape->length == 4 && shape->most == 0xFFFF && !rocstar::shape_of_utf8(halves));
  const std::u32string found = code_points(halves, 4);
  CHECK(found[0] == U'a' && found[1] == 0xD800 && found[2] == 0xDFFF && found[3] == U'!');
  for (const char* text : {"\xED\xA0", "\xED\xC0\x80", "\xED\xA0z", "\xFF"}) {
    CHECK(!rocstar::shape_of_utf8(text, rocstar::Halves::kTaken));
  }
}

bool is_valid(const std::string& text) { return repair_utf8(text) == text; }

// Any bytes, cut anywhere: valid afterwards, and repairing twice is repairing once.
void repair_makes_any_bytes_valid() {
  std::mt19937_64 random(5);
  static const unsigned char kLikely[] = {0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xE2, 0xED,
                                          0xA0, 0x9F, 0xF0, 0x90, 0xF4, 0x8F, 0xF5, 0xFF, 0x82, 0xAC};
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes(random() % 24, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 ? kLikely[random() % std::size(kLikely)] : random());
    const std::string repaired = repair_utf8(bytes);
    CHECK(rocstar::shape_of_utf8(repaired) && rocstar::shape_of_utf8(bytes).has_value() == is_valid(bytes));
    CHECK(is_valid(repaired) && repaired.size() <= 3 * bytes.size());
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    if (is_valid(bytes)) {
      CHECK(is_valid(std::string(cut_utf8(std::string_view(bytes).substr(0, at)))));
      CHECK(is_valid(std::string(skip_partial_utf8(std::string_view(bytes).substr(at)))));
    }
  }
}

std::string any_bytes(std::mt19937_64& random) {
  static const char* const kPieces[] = {"a",        "bcdefghijklm", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xC3",
                                        "\xE2\x82", "\xF0\x9F\x98", "\xE0\x80",     "\x80\x80\x80\x80", "\xFF"};
  std::string bytes;
  while (random() % 8 != 0) bytes += kPieces[random() % std::size(kPieces)];
  return bytes;
}

// Between two steps: what is repaired apart is what is repaired together.
bool is_between(const std::string& bytes, size_t at) {
  return repair_utf8(bytes.substr(0, at)) + repair_utf8(bytes.substr(at)) == repair_utf8(bytes);
}

void what_fits_is_the_longest_that_does() {
  std::mt19937_64 random(13);
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = any_bytes(random);
    const size_t most = random() % 40;
    size_t prefix = bytes.size(), suffix = 0;
    while (!is_between(bytes, prefix) || repair_utf8(bytes.substr(0, prefix)).size() > most) --prefix;
    while (!is_between(bytes, suffix) || repair_utf8(bytes.substr(suffix)).size() > most) ++suffix;
    CHECK(rocstar::fitting_prefix(bytes, most) == bytes.substr(0, prefix));
    CHECK(rocstar::fitting_suffix(bytes, most) == bytes.substr(suffix));
    std::string_view head = bytes, tail = bytes;
    CHECK(rocstar::repair_prefix(head, most) == repair_utf8(bytes.substr(0, prefix)) && head.size() == prefix);
    CHECK(rocstar::repair_suffix(tail, most) == repair_utf8(bytes.substr(suffix)) && tail.data() == &bytes[suffix]);
    const std::string repaired = repair_utf8(bytes);
    const auto within = rocstar::repair_within(bytes, most);
    CHECK(within.has_value() == (repaired.size() <= most) && within.value_or(repaired) == repaired);
  }
}

}  // namespace

int main() {
  valid_text_is_left_alone();
  each_ill_formed_part_becomes_one_mark();
  a_cut_never_splits_a_code_point();
  a_tail_starts_with_a_whole_code_point();
  code_points_come_out_one_by_one();
  what_is_no_utf8_has_no_shape();
  halves_of_pairs_are_taken_where_they_may_be();
  repair_makes_any_bytes_valid();
  what_fits_is_the_longest_that_does();
}
