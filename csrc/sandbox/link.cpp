#include "link.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace rocstar {
namespace {

constexpr size_t kMostFds = FdList::kMost;

}  // namespace

void send_message(int socket, std::string_view bytes, std::span<const int> fds) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostFds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (true) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(bytes.size())) return;
    if (sent < 0 && errno == EINTR) continue;
    throw std::system_error(sent < 0 ? errno : EMSGSIZE, std::generic_category(), "sendmsg");
  }
}

Message receive_message(int socket, std::span<char> buffer, bool& would_block) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostFds) + CMSG_SPACE(sizeof(ucred))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  would_block = false;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    would_block = errno == EAGAIN || errno == EINTR;
    if (would_block || errno == ECONNRESET) return {};
    throw std::system_error(errno, std::generic_category(), "recvmsg");
  }
  Message received{.bytes = static_cast<size_t>(got)};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_CREDENTIALS) {
      ucred sender;
      std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
      received.sender = sender.pid;
    }
    if (header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      received.fds.add(UniqueFd(fd));
    }
  }
  return received;
}

}  // namespace rocstar
