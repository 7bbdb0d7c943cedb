#include "check.h"
#include "utf8.h"

using rocstar::cut_utf8;
using rocstar::repair_utf8;

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
  CHECK(cut_utf8("abc", 5) == "abc");
  CHECK(cut_utf8("abc", 2) == "ab");
  CHECK(cut_utf8("abc", 0) == "");
  const std::string text = "x\xE2\x82\xACy";
  CHECK(cut_utf8(text, 1) == "x");
  CHECK(cut_utf8(text, 2) == "x");
  CHECK(cut_utf8(text, 3) == "x");
  CHECK(cut_utf8(text, 4) == "x\xE2\x82\xAC");
  const std::string smile = "\xF0\x9F\x98\x80!";
  for (size_t limit = 0; limit < 4; ++limit) CHECK(cut_utf8(smile, limit) == "");
  CHECK(cut_utf8("\x80\x80\x80\x80\x80", 3).size() == 3);  // nothing valid to protect
}

}  // namespace

int main() {
  valid_text_is_left_alone();
  each_ill_formed_part_becomes_one_mark();
  a_cut_never_splits_a_code_point();
}
