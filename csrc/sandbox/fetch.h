// Files that a caller asked to have, read from a program's directory once it has ended.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rocstar {

// Of one answer, all its files together.
inline constexpr uint64_t kMostFetchedBytes = 64 << 20;
// What a program displays lies in files of this folder with the names 0, 1, 2, ...; an empty one ends the row.
inline constexpr std::string_view kDisplayFolder = ".display";
inline constexpr int kMostDisplays = 32;

// FILE frames for those of `names` (each with a line's end) that are regular files below `directory`, then for what
// was displayed. Left out: what is not there, is reached through a link, or is more than is left of
// kMostFetchedBytes. `directory` may be -1: then there are none.
void append_files(std::string& to, uint64_t id, int directory, std::string_view names, bool displays);

}  // namespace rocstar
