#include "runtime/launch/bootstrap_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/launch/meeting.h"
#include "runtime/launch/wire.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// Bytes to be sent, in pieces that connections may share.
class Outbox {
 public:
  void Add(std::shared_ptr<const std::string> piece) {
    if (piece != nullptr && !piece->empty()) pieces_.push_back(std::move(piece));
  }
  bool empty() const { return pieces_.empty(); }
  bool one_left() const { return pieces_.size() == 1; }
  std::string_view front() const { return std::string_view(*pieces_.front()).substr(sent_); }
  void Sent(size_t bytes) {  // of front()
    sent_ += bytes;
    if (sent_ < pieces_.front()->size()) return;
    pieces_.pop_front();
    sent_ = 0;
  }

 private:
  std::deque<std::shared_ptr<const std::string>> pieces_;
  size_t sent_ = 0;  // of the first
};

struct Connection {
  enum class Stage { kHello, kProof, kJoined, kClosing };
  Fd fd;
  Stage stage = Stage::kHello;
  Introduction introduction;
  std::string in;
  Outbox out;
  SteadyTime deadline;  // of the handshake, or of a refusal's last bytes
  bool dead = false;
};

}  // namespace

class BootstrapServer::Loop {
 public:
  Loop(const Options& options, Listener listener, Fd wake)
      : options_(options),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        meeting_(options.size) {}

  void Start() {
    // The signals of the process are its main thread's to take.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { Run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Loop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  int port() const { return listener_.port; }

  void Abort(const absl::Status& reason) {
    {
      std::lock_guard lock(mutex_);
      if (requested_abort_.ok()) requested_abort_ = reason;
    }
    Wake();
  }

  std::vector<int> WaitUntilAllLeft(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, InSeconds(seconds), [&] { return all_left_; });
    return here_;
  }

 private:
  void Wake() {
    const uint64_t one = 1;
    const ssize_t ignored = ::write(wake_.get(), &one, sizeof(one));
    static_cast<void>(ignored);
  }

  void Run() {
    while (TakeOrders()) {
      Deliver();
      Poll();
      Expire();
      Deliver();
      connections_.remove_if([](const Connection& c) { return c.dead; });
      Tell();
    }
    // What was decided last still reaches those who read it.
    Deliver();
  }

  // False: stop.
  bool TakeOrders() {
    std::lock_guard lock(mutex_);
    if (!requested_abort_.ok()) meeting_.Abort(requested_abort_);
    return !stop_;
  }

  void Tell() {
    if (!all_joined_ && meeting_.AllJoined()) {
      all_joined_ = true;
      if (options_.all_joined) options_.all_joined();
    }
    std::lock_guard lock(mutex_);
    all_left_ = meeting_.AllLeft();
    here_ = meeting_.Here();
    changed_.notify_all();
  }

  void Poll() {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {listener_.fd.get(), Accepts(), 0}};
    SteadyTime next = meeting_.NextDeadline();
    if (accept_after_ > std::chrono::steady_clock::now()) next = std::min(next, accept_after_);
    for (const Connection& c : connections_) {
      fds.push_back({c.fd.get(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      if (c.stage != Connection::Stage::kJoined) next = std::min(next, c.deadline);
    }
    const int timeout = next == SteadyTime::max() ? -1 : MillisecondsUntil(next);
    if (::poll(fds.data(), fds.size(), timeout) <= 0) return;
    if (fds[0].revents != 0) {
      uint64_t count;
      const ssize_t ignored = ::read(wake_.get(), &count, sizeof(count));
      static_cast<void>(ignored);
    }
    size_t i = 2;
    for (Connection& c : connections_) {
      if (fds[i++].revents != 0) Serve(c);
    }
    if (fds[1].revents != 0) Accept();
  }

  // Strangers may hold a few places, never all of this process's descriptors.
  short Accepts() const {
    constexpr size_t kStrangers = 64;
    return connections_.size() < static_cast<size_t>(options_.size) + kStrangers &&
                   accept_after_ <= std::chrono::steady_clock::now()
               ? POLLIN
               : 0;
  }

  void Accept() {
    Connection c;
    c.fd = Fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!c.fd.open()) {
      // Out of descriptors the listener would stay ready, and this loop spin.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) accept_after_ = InSeconds(0.1);
      return;
    }
    TuneConnection(c.fd.get());
    c.deadline = InSeconds(options_.handshake_s);
    connections_.push_back(std::move(c));
  }

  void Serve(Connection& c) {
    while (!c.dead) {
      const absl::Status received = ReceiveSome(c.fd.get(), c.in, SteadyTime{});
      if (StatusClass(received) == CAPSTAN_TIMEOUT) return;  // nothing more for now
      if (!received.ok()) return Drop(c);
      if (c.stage == Connection::Stage::kClosing) c.in.clear();
      HandleFrames(c);
    }
  }

  void HandleFrames(Connection& c) {
    while (!c.dead && c.stage != Connection::Stage::kClosing) {
      const bool joined = c.stage == Connection::Stage::kJoined;
      absl::StatusOr<std::optional<std::string>> body =
          TakeFrame(c.in, joined ? kLongestFrame : kHandshakeFrame);
      if (!body.ok()) return Drop(c);
      if (!body->has_value()) return;
      if (joined) {
        if (!meeting_.Handle(c.introduction.rank, **body).ok()) Drop(c);
      } else {
        Shake(c, **body);
      }
    }
  }

  void Shake(Connection& c, std::string_view body) {
    Fields fields(body);
    const auto type = static_cast<MessageType>(fields.U8());
    Introduction& who = c.introduction;
    if (c.stage == Connection::Stage::kHello && type == MessageType::kHello) {
      const uint32_t magic = fields.U32(), version = fields.U32();
      who.rank = fields.I32();
      who.size = fields.I32();
      who.epoch = fields.I32();
      who.client_nonce = fields.Bytes();
      absl::StatusOr<Digest> nonce = RandomBytes();
      if (!fields.ok() || magic != Introduction::kMagic || version != Introduction::kVersion ||
          !nonce.ok()) {
        return Drop(c);
      }
      who.server_nonce = *nonce;
      c.stage = Connection::Stage::kProof;
      Send(c, Frame(MessageType::kChallenge)
                  .Bytes(who.server_nonce)
                  .Bytes(ProofOfServer(options_.secret, who))
                  .Done());
      return;
    }
    const Digest proof = fields.Bytes();
    if (c.stage != Connection::Stage::kProof || type != MessageType::kProof || !fields.ok() ||
        !SameDigest(proof, ProofOfClient(options_.secret, who))) {
      return Drop(c);  // a stranger learns nothing
    }
    Admit(c);
  }

  void Admit(Connection& c) {
    const Introduction& who = c.introduction;
    absl::Status status;
    if (who.size != options_.size || who.rank < 0 || who.rank >= options_.size) {
      status = UsageError("this process is rank ", who.rank, " of ", who.size,
                          ", but the job it joins has ", options_.size,
                          " ranks; give every rank the same world size");
    } else if (who.epoch != options_.epoch) {
      status = UsageError("this process belongs to start ", who.epoch, " of the job, which is at ",
                          options_.epoch, "; it was left over from before a restart");
    } else {
      status = meeting_.Join(who.rank);
    }
    if (!status.ok()) {
      Send(c, Frame(MessageType::kRefused).Status(status).Done());
      c.stage = Connection::Stage::kClosing;
      c.deadline = InSeconds(1);
      return;
    }
    c.stage = Connection::Stage::kJoined;
    Send(c, Frame(MessageType::kWelcome).Done());
  }

  void Drop(Connection& c) {
    if (c.dead) return;
    c.dead = true;
    if (c.stage == Connection::Stage::kJoined) meeting_.Lost(c.introduction.rank);
  }

  void Expire() {
    const SteadyTime now = std::chrono::steady_clock::now();
    meeting_.Expire(now);
    for (Connection& c : connections_) {
      if (c.stage != Connection::Stage::kJoined && c.deadline <= now) Drop(c);
    }
  }

  void Deliver() {
    // Writing may find a rank gone, which is news for the others.
    for (bool more = true; more;) {
      const std::vector<Meeting::Answer> answers = meeting_.TakeAnswers();
      for (const Meeting::Answer& answer : answers) {
        for (Connection& c : connections_) {
          if (c.stage == Connection::Stage::kJoined && c.introduction.rank == answer.rank) {
            c.out.Add(std::make_shared<const std::string>(answer.head));
            c.out.Add(answer.end);
          }
        }
      }
      for (Connection& c : connections_) Flush(c);
      more = !answers.empty();
    }
  }

  void Send(Connection& c, std::string frame) {
    c.out.Add(std::make_shared<const std::string>(std::move(frame)));
    Flush(c);
  }

  void Flush(Connection& c) {
    while (!c.dead && !c.out.empty()) {
      const std::string_view next = c.out.front();
      const ssize_t n = ::send(c.fd.get(), next.data(), next.size(),
                               MSG_NOSIGNAL | (c.out.one_left() ? 0 : MSG_MORE));
      if (n > 0) {
        c.out.Sent(static_cast<size_t>(n));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return;
      } else if (errno != EINTR) {
        return Drop(c);
      }
    }
  }

  const Options options_;
  Listener listener_;
  Fd wake_;
  Meeting meeting_;  // the thread's, like the connections
  std::list<Connection> connections_;
  SteadyTime accept_after_{};
  bool all_joined_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, all_left_ = false;
  std::vector<int> here_;
  absl::Status requested_abort_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<BootstrapServer>> BootstrapServer::Start(const Options& options) {
  CAPSTAN_ASSIGN_OR_RETURN(Listener listener,
                           Listen(options.address, options.port, options.everywhere));
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.open()) return ResourceError("cannot make an eventfd: ", std::string(strerror(errno)));
  auto loop = std::make_unique<Loop>(options, std::move(listener), std::move(wake));
  loop->Start();
  return std::unique_ptr<BootstrapServer>(new BootstrapServer(std::move(loop)));
}

BootstrapServer::BootstrapServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
BootstrapServer::~BootstrapServer() = default;

int BootstrapServer::port() const { return loop_->port(); }
void BootstrapServer::Abort(const absl::Status& reason) { loop_->Abort(reason); }
std::vector<int> BootstrapServer::WaitUntilAllLeft(double seconds) {
  return loop_->WaitUntilAllLeft(seconds);
}

}  // namespace capstan
