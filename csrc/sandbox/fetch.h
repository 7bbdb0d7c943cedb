// Reads the files that a caller fetches from a program's directory after its end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rocstar {

// The maximum of all files of one result together.
inline constexpr uint64_t kMostFetchedBytes = 64 << 20;
// The displays of a program are files 0, 1, 2, ... of this folder; an empty file ends the list.
inline constexpr std::string_view kDisplayFolder = ".display";
inline constexpr int kMostDisplays = 32;

// Appends FILE frames for those of `names` (each with a newline) that are regular files below `directory`, then for the
// displays. Omits missing files, files behind links, and files beyond kMostFetchedBytes. `directory` may be -1: no
// files.
void append_files(std::string& to, uint64_t id, int directory, std::string_view names, bool displays);

}  // namespace rocstar
