// Files that a caller asked for: those below the directory, and nothing else.
#include "fetch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "check.h"
#include "directory_tree.h"
#include "home.h"
#include "protocol.h"
#include "unique_fd.h"

using namespace rocstar;

namespace {

struct Folder {
  std::string path = "/tmp/test-fetch-XXXXXX";
  UniqueFd fd;
  Folder() {
    CHECK(mkdtemp(path.data()) != nullptr);
    fd.reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~Folder() { remove_tree(path); }
};

void write_file(int folder, const char* name, const std::string& content) {
  const UniqueFd file(openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  CHECK(write(file.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size()));
}

// Contents by name, put together from their pieces, of all FILE frames; `pieces` counts those.
std::map<std::string, std::string> fetched(int folder, std::string_view names, bool displays, int* pieces = nullptr) {
  std::string bytes;
  append_files(bytes, 7, folder, names, displays);
  FrameReader reader;
  reader.feed(bytes);
  std::map<std::string, std::string> files;
  while (const auto frame = reader.next()) {
    CHECK(frame->type == FrameType::kFile && decode_id(frame->payload.substr(0, 8)) == 7);
    const auto length = static_cast<unsigned char>(frame->payload[8]);
    files[std::string(frame->payload.substr(9, length))] += frame->payload.substr(9 + length);
    if (pieces != nullptr) ++*pieces;
  }
  return files;
}

void what_is_there_comes_in_pieces() {
  const Folder folder;
  CHECK(mkdirat(folder.fd.get(), "a", 0700) == 0);
  const std::string large(3 << 20 | 5, 'x');
  write_file(folder.fd.get(), "a/large", large);
  write_file(folder.fd.get(), "empty", "");
  int pieces = 0;
  const auto files = fetched(folder.fd.get(), "a/large\nempty\nnowhere\n", false, &pieces);
  CHECK(files.size() == 2 && files.at("a/large") == large && files.at("empty").empty() && pieces == 5);
  CHECK(fetched(-1, "empty\n", true).empty());
}

void nothing_but_a_file_below_the_folder_is_read() {
  const Folder folder, other;
  write_file(other.fd.get(), "secret", "x");
  CHECK(symlinkat((other.path + "/secret").c_str(), folder.fd.get(), "link") == 0);
  CHECK(symlinkat(other.path.c_str(), folder.fd.get(), "folder") == 0);
  CHECK(mkfifoat(folder.fd.get(), "pipe", 0600) == 0);
  const std::string above = "../" + other.path.substr(other.path.rfind('/') + 1) + "/secret";
  CHECK(fetched(folder.fd.get(), "link\nfolder/secret\npipe\n.\n" + above + "\n" + other.path + "/secret\n", false)
            .empty());
}

void displays_come_up_to_the_first_that_is_missing_or_empty() {
  const Folder folder;
  CHECK(mkdirat(folder.fd.get(), ".display", 0700) == 0);
  for (const char* name : {".display/0", ".display/1", ".display/3"}) write_file(folder.fd.get(), name, "x");
  CHECK(fetched(folder.fd.get(), "", true).size() == 2);
  CHECK(fetched(folder.fd.get(), "", false).empty());
  write_file(folder.fd.get(), ".display/0", "");
  CHECK(fetched(folder.fd.get(), "", true).empty());
}

void what_is_more_than_there_is_room_for_is_left_out() {
  const Folder folder;
  write_file(folder.fd.get(), "large", "");
  write_file(folder.fd.get(), "small", "x");
  CHECK(truncate((folder.path + "/large").c_str(), static_cast<off_t>(kMostFetchedBytes)) == 0);
  CHECK(fetched(folder.fd.get(), "small\nlarge\n", false).size() == 1);
}

// As the supervisor's loop and its worker do. With a shared buffer each content holds bytes of the other.
void two_threads_fetch_files_of_two_owners() {
  const Folder folders[2];
  const std::string contents[2] = {std::string(5 << 20 | 1, 'A'), std::string(900'000, 'B')};
  for (int i = 0; i < 2; ++i) write_file(folders[i].fd.get(), "f", contents[i]);
  std::atomic<int> running{2};
  const auto fetch = [&](int i) {
    // Each goes on until both are done, so that they overlap on one processor too.
    for (int times = 0; times < 20 || running > 0; ++times) {
      CHECK(fetched(folders[i].fd.get(), "f\n", false)["f"] == contents[i]);
      if (times == 19) --running;
    }
  };
  std::thread worker(fetch, 0);
  fetch(1);
  worker.join();
}

}  // namespace

int main() {
  what_is_there_comes_in_pieces();
  nothing_but_a_file_below_the_folder_is_read();
  displays_come_up_to_the_first_that_is_missing_or_empty();
  what_is_more_than_there_is_room_for_is_left_out();
  two_threads_fetch_files_of_two_owners();
  return 0;
}
