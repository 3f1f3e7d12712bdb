#include "runtime/launch/wire.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <memory>

#include "runtime/status.h"

namespace capstan {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

std::string Reason() { return strerror(errno); }

Digest Proof(const char* label, const std::string& secret, const Introduction& i) {
  std::string text = label;
  for (const int32_t field :
       {static_cast<int32_t>(Introduction::kVersion), i.rank, i.size, i.epoch}) {
    text.append(reinterpret_cast<const char*>(&field), sizeof(field));
  }
  text.append(AsText(i.client_nonce));
  text.append(AsText(i.server_nonce));
  return HmacSha256(secret, text);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string name = address.empty() ? "127.0.0.1" : address;
  const int code = ::getaddrinfo(name.c_str(), StrCat(port).c_str(), &hints, &list);
  if (code != 0) {
    return UsageError("cannot resolve '", name,
                      "', where the ranks are to meet: ", std::string(::gai_strerror(code)),
                      "; check MASTER_ADDR");
  }
  return Addresses(list);
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

void SetOption(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

// 1 ready, 0 deadline passed, -1 error.
int WaitFor(int fd, short events, SteadyTime deadline) {
  pollfd p{fd, events, 0};
  for (;;) {
    const int n = ::poll(&p, 1, MillisecondsUntil(deadline));
    if (n >= 0 || errno != EINTR) return n;
  }
}

}  // namespace

int MillisecondsUntil(SteadyTime when) {
  const auto left = when - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, INT_MAX));
}

// ---- frames ------------------------------------------------------------------------------------

void AppendText(std::string* to, std::string_view text) {
  const auto size = static_cast<uint32_t>(text.size());
  to->append(reinterpret_cast<const char*>(&size), sizeof(size));
  to->append(text);
}

Frame& Frame::Status(const absl::Status& status) {
  return I32(StatusClass(status))
      .I32(IsRetryable(status) ? 1 : 0)
      .I32(CulpritRank(status))
      .Text(ToStd(status.message()));
}

std::string Frame::Done(size_t rest) {
  const auto size = static_cast<uint32_t>(bytes_.size() - 4 + rest);
  std::memcpy(bytes_.data(), &size, sizeof(size));
  return std::move(bytes_);
}

absl::Status Fields::Status() {
  const int32_t status_class = I32(), retryable = I32(), culprit = I32();
  const std::string_view message = Text();
  if (!ok_ || status_class == 0) return absl::OkStatus();
  return MakeStatus(status_class, message, retryable != 0, culprit);
}

absl::StatusOr<std::optional<std::string>> TakeFrame(std::string& buffer, uint32_t longest) {
  uint32_t size = 0;
  if (buffer.size() < sizeof(size)) return std::optional<std::string>();
  std::memcpy(&size, buffer.data(), sizeof(size));
  if (size == 0 || size > longest) {
    return DataError("a frame of ", size,
                     " bytes; what connects here does not speak the "
                     "rendezvous protocol");
  }
  if (buffer.size() < sizeof(size) + size) return std::optional<std::string>();
  std::optional<std::string> body = buffer.substr(sizeof(size), size);
  buffer.erase(0, sizeof(size) + size);
  return body;
}

// ---- the handshake -------------------------------------------------------------------------------

Digest ProofOfServer(const std::string& secret, const Introduction& introduction) {
  return Proof("capstan rendezvous server", secret, introduction);
}

Digest ProofOfClient(const std::string& secret, const Introduction& introduction) {
  return Proof("capstan rendezvous client", secret, introduction);
}

std::string JobId(const std::string& secret, int epoch) {
  return ToHex(AsText(HmacSha256(secret, StrCat("capstan job ", epoch))));
}

// ---- sockets -------------------------------------------------------------------------------------

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

void TuneConnection(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

bool IsLoopback(const std::string& address) {
  return address.empty() || address == "localhost" || address == "::1" ||
         address.compare(0, 4, "127.") == 0;
}

absl::StatusOr<Listener> Listen(const std::string& address, int port, bool everywhere) {
  CAPSTAN_ASSIGN_OR_RETURN(Addresses list, Resolve(address, port));
  sockaddr* where = list->ai_addr;
  if (everywhere && IsLoopback(where)) {
    if (where->sa_family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(where)->sin_addr.s_addr = htonl(INADDR_ANY);
    } else {
      reinterpret_cast<sockaddr_in6*>(where)->sin6_addr = in6addr_any;
    }
  }
  Listener made;
  made.fd = Fd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.fd.open()) SetOption(made.fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (!made.fd.open() || ::bind(made.fd.get(), where, list->ai_addrlen) != 0 ||
      ::listen(made.fd.get(), SOMAXCONN) != 0) {
    const char* remedy = errno == EADDRNOTAVAIL
                             ? "; MASTER_ADDR must be an address of the machine of rank 0"
                             : (errno == EADDRINUSE ? "; another program has the port: choose "
                                                      "another MASTER_PORT (or CAPSTAN_PORT)"
                                                    : "");
    return ResourceError("rank 0 cannot listen at ", address.empty() ? "127.0.0.1" : address,
                         " port ", port, ": ", Reason(), remedy);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(made.fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  made.port =
      ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
                                       : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port);
  return made;
}

absl::StatusOr<Fd> Connect(const std::string& address, int port, SteadyTime deadline) {
  CAPSTAN_ASSIGN_OR_RETURN(Addresses list, Resolve(address, port));
  int error = 0;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.open()) return ResourceError("cannot make a socket: ", Reason());
    if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) {
      TuneConnection(fd.get());
      return fd;
    }
    error = errno;
    if (error == EINPROGRESS) {
      error = ETIMEDOUT;
      if (WaitFor(fd.get(), POLLOUT, deadline) == 1) {
        socklen_t size = sizeof(error);
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
      if (error == 0) {
        TuneConnection(fd.get());
        return fd;
      }
    }
  }
  return MakeStatus(CAPSTAN_PEER_LOST,
                    StrCat("cannot connect to ", address.empty() ? "127.0.0.1" : address, " port ",
                           port, ": ", strerror(error)),
                    /*retryable=*/true);
}

absl::Status SendAll(int fd, std::string_view bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      if (WaitFor(fd, POLLOUT, deadline) == 0) return TimeoutError("nobody reads what is sent");
    } else if (errno != EINTR) {
      return MakeStatus(CAPSTAN_PEER_LOST, StrCat("the connection is broken: ", Reason()), true);
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveSome(int fd, std::string& buffer, SteadyTime deadline) {
  char piece[65536];
  for (;;) {
    const ssize_t n = ::recv(fd, piece, sizeof(piece), 0);
    if (n > 0) {
      buffer.append(piece, static_cast<size_t>(n));
      return absl::OkStatus();
    }
    if (n == 0) return MakeStatus(CAPSTAN_PEER_LOST, "the connection was closed", true);
    if (errno == EAGAIN) {
      if (WaitFor(fd, POLLIN, deadline) == 0) return TimeoutError("no answer");
    } else if (errno != EINTR) {
      return MakeStatus(CAPSTAN_PEER_LOST, StrCat("the connection is broken: ", Reason()), true);
    }
  }
}

}  // namespace capstan
