// Frames and sockets of the rendezvous. A frame is a length (4 bytes, little-endian) and that many
// bytes: the type of the message and its fields. Numbers are little-endian.
#ifndef CAPSTAN_RUNTIME_LAUNCH_WIRE_H_
#define CAPSTAN_RUNTIME_LAUNCH_WIRE_H_

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/launch/sha256.h"

namespace capstan {

using SteadyTime = std::chrono::steady_clock::time_point;
inline SteadyTime InSeconds(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}
// Milliseconds for poll(2), rounded up; never negative.
int MillisecondsUntil(SteadyTime when);

// ---- frames ------------------------------------------------------------------------------------

enum class MessageType : uint8_t {
  // before the client is known
  kHello = 1,      // magic, version, rank, size, epoch, client nonce
  kChallenge = 2,  // server nonce, the server's proof
  kProof = 3,      // the client's proof
  kWelcome = 4,
  kRefused = 5,  // status; then the server closes
  // requests: id, ...
  kPut = 16,       // key, value
  kGet = 17,       // key, timeout
  kExchange = 18,  // name, timeout, value
  kAbort = 19,     // no id; status
  kBye = 20,       // no id: this rank needs the rendezvous no more
  // answers
  kReply = 32,    // id, status, value
  kAborted = 33,  // status
};

inline constexpr uint32_t kHandshakeFrame = 4096;  // longest before the peer is known, bytes
inline constexpr uint32_t kLongestFrame = 64u << 20;
// Of one key, and of an exchange those of all ranks together; their frames are a little longer.
inline constexpr size_t kLongestValue = 32u << 20;

// A text as Fields::Text reads it: its length (4 bytes), then its bytes.
void AppendText(std::string* to, std::string_view text);

// Builds one frame.
class Frame {
 public:
  explicit Frame(MessageType type) : bytes_(4, '\0') { bytes_ += static_cast<char>(type); }
  Frame& U32(uint32_t v) { return Raw(&v, sizeof(v)); }
  Frame& I32(int32_t v) { return Raw(&v, sizeof(v)); }
  Frame& U64(uint64_t v) { return Raw(&v, sizeof(v)); }
  Frame& F64(double v) { return Raw(&v, sizeof(v)); }
  Frame& Bytes(const Digest& d) { return Raw(d.data(), d.size()); }
  Frame& Text(std::string_view text) {
    AppendText(&bytes_, text);
    return *this;
  }
  Frame& Status(const absl::Status& status);
  // Once, last. `rest`: so many bytes more of it are sent separately.
  std::string Done(size_t rest = 0);

 private:
  Frame& Raw(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
    return *this;
  }
  std::string bytes_;
};

// Reads the fields of one frame's body. Past the end every field is zero and ok() is false, so that a
// reader checks once, at the end.
class Fields {
 public:
  explicit Fields(std::string_view body) : rest_(body) {}
  uint8_t U8() { return Number<uint8_t>(); }
  uint32_t U32() { return Number<uint32_t>(); }
  int32_t I32() { return Number<int32_t>(); }
  uint64_t U64() { return Number<uint64_t>(); }
  double F64() { return Number<double>(); }
  Digest Bytes() { return Number<Digest>(); }
  std::string_view Text() { return Take(U32()); }
  absl::Status Status();
  bool ok() const { return ok_; }

 private:
  template <typename T>
  T Number() {
    T value{};
    const std::string_view bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view Take(size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
  bool ok_ = true;
};

// Takes the first whole frame's body off `buffer`. nullopt: none yet. DATA: longer than `longest`.
absl::StatusOr<std::optional<std::string>> TakeFrame(std::string& buffer, uint32_t longest);

// ---- the handshake -------------------------------------------------------------------------------

// What both sides vouch for. Each proves that it knows the job's secret by the HMAC of all of it, under
// a label of its own, so that neither can be answered with its own words.
struct Introduction {
  static constexpr uint32_t kMagic = 0x42535043;
  static constexpr uint32_t kVersion = 1;
  int32_t rank = 0, size = 1, epoch = 0;
  Digest client_nonce{}, server_nonce{};
};
Digest ProofOfServer(const std::string& secret, const Introduction& introduction);
Digest ProofOfClient(const std::string& secret, const Introduction& introduction);
// Id of the job that its ranks hand to plugins: tells nothing of the secret, and cannot be guessed
// without it. Another one after each restart.
std::string JobId(const std::string& secret, int epoch);

// ---- sockets -------------------------------------------------------------------------------------

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    Fd old(std::exchange(fd_, std::exchange(other.fd_, -1)));
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close() { Fd old(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

bool IsLoopback(const std::string& address);  // "", "localhost", 127.*, ::1

struct Listener {
  Fd fd;  // non-blocking
  int port = 0;
};
// address "": loopback. port 0: any. `everywhere`: a name that means loopback to this machine (Debian's
// /etc/hosts has the machine's own name so) listens on every interface instead.
absl::StatusOr<Listener> Listen(const std::string& address, int port, bool everywhere);

// One attempt. Failures that may pass (nobody listens yet) are retryable. The socket is non-blocking.
absl::StatusOr<Fd> Connect(const std::string& address, int port, SteadyTime deadline);

// Small frames leave at once, and a machine that is gone without a word is noticed within minutes.
void TuneConnection(int fd);

absl::Status SendAll(int fd, std::string_view bytes, SteadyTime deadline);
// Reads what is there into `buffer`, waiting for the first byte. TIMEOUT; PEER_LOST at the end.
absl::Status ReceiveSome(int fd, std::string& buffer, SteadyTime deadline);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_WIRE_H_
