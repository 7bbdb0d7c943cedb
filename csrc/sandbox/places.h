// Folders that a program expects, and where in its directory they are: as in sandbox/files.py.
#pragma once

namespace rocstar {

struct Place {
  const char *folder, *within;
};

inline constexpr Place kPlaces[] = {{"/tmp", "/.tmp"}, {"/var/tmp", "/.tmp"}, {"/dev/shm", "/.tmp"}, {"/mnt/data", ""}};

}  // namespace rocstar
