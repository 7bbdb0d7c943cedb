// Packets between supervisor, zygotes and children: bytes and descriptors arrive together, or their absence is told.
#include "link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "check.h"

using namespace rocstar;

namespace {

struct Ends {
  UniqueFd one, other;
};

Ends make_ends(int type) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

ino_t file_of(int fd) {
  struct stat info;
  CHECK(fstat(fd, &info) == 0);
  return info.st_ino;
}

int open_fds() {
  int count = 0;
  for (int fd = 0; fd < 200; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

void bytes_and_descriptors_arrive_together() {
  const Ends ends = make_ends(SOCK_SEQPACKET);
  int pipe_ends[2];
  CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
  const UniqueFd first(pipe_ends[0]), second(pipe_ends[1]);
  const int fds[3] = {first.get(), second.get(), 0};
  send_message(ends.one.get(), "order", fds);
  char buffer[64];
  bool again = true;
  const Message got = receive_message(ends.other.get(), buffer, again);
  CHECK(!again && got.bytes == 5 && std::memcmp(buffer, "order", 5) == 0);
  CHECK(got.fds.size() == 3);
  CHECK(file_of(got.fds[0].get()) == file_of(first.get()) && file_of(got.fds[2].get()) == file_of(0));
  // What a fork of ours passes on to an exec is decided by us.
  for (const UniqueFd& fd : got.fds) CHECK(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
}

void packets_stay_apart_and_a_message_needs_no_descriptor() {
  const Ends ends = make_ends(SOCK_SEQPACKET);
  send_message(ends.one.get(), "one", {});
  send_message(ends.one.get(), "second", {});
  char buffer[64];
  bool again = false;
  CHECK(receive_message(ends.other.get(), buffer, again).bytes == 3);
  const Message second = receive_message(ends.other.get(), buffer, again);
  CHECK(second.bytes == 6 && second.fds.empty());
}

void nothing_there_is_no_end() {
  Ends ends = make_ends(SOCK_SEQPACKET);
  CHECK(fcntl(ends.other.get(), F_SETFL, O_NONBLOCK) == 0);
  char buffer[8];
  bool again = false;
  CHECK(receive_message(ends.other.get(), buffer, again).bytes == 0 && again);
  ends.one.reset();
  again = true;
  CHECK(receive_message(ends.other.get(), buffer, again).bytes == 0 && !again);
}

void descriptors_of_a_message_do_not_leak() {
  const Ends ends = make_ends(SOCK_STREAM);
  const int before = open_fds();
  for (int round = 0; round < 20; ++round) {
    const int fds[2] = {0, 1};
    send_message(ends.one.get(), "x", fds);
    char buffer[8];
    bool again = false;
    CHECK(receive_message(ends.other.get(), buffer, again).fds.size() == 2);
  }
  CHECK(open_fds() == before);
}

void a_closed_end_is_an_error_and_no_signal() {
  Ends ends = make_ends(SOCK_SEQPACKET);
  ends.other.reset();
  int error = 0;
  try {
    send_message(ends.one.get(), "x", {});
  } catch (const std::system_error& caught) {
    error = caught.code().value();
  }
  CHECK(error == EPIPE);
}

// The child's side of a stream reads these byte by byte: their layout is fixed.
void messages_have_no_holes() {
  static_assert(sizeof(Birth) == 5 && sizeof(CellHeader) == 14 && sizeof(CellReply) == 17);
}

}  // namespace

int main() {
  bytes_and_descriptors_arrive_together();
  packets_stay_apart_and_a_message_needs_no_descriptor();
  nothing_there_is_no_end();
  descriptors_of_a_message_do_not_leak();
  a_closed_end_is_an_error_and_no_signal();
  messages_have_no_holes();
}
