#include "runtime/launch/join.h"

#include <poll.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/launch/rendezvous_file.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// One try. again: another may succeed, with what the file says by then.
struct Attempt {
  Fd fd;
  std::string received;  // beyond the handshake
  absl::Status status;
  bool again = false;
};

Attempt Failed(const absl::Status& status, bool again) { return {Fd(), "", status, again}; }

absl::StatusOr<std::string> ReceiveFrame(int fd, std::string& buffer, SteadyTime deadline) {
  for (;;) {
    CAPSTAN_ASSIGN_OR_RETURN(std::optional<std::string> body, TakeFrame(buffer, kHandshakeFrame));
    if (body.has_value()) return *std::move(body);
    CAPSTAN_RETURN_IF_ERROR(ReceiveSome(fd, buffer, deadline));
  }
}

std::string Place(const Rendezvous& where) {
  return StrCat(where.address.empty() ? "127.0.0.1" : where.address, " port ", where.port);
}

// `tentative`: where the rendezvous was found may be out of date. `deadline` is that of the attempt.
// Once the rendezvous has this rank's proof it may count the rank as present, and another attempt
// would look like its death: then it has until `last`.
Attempt ShakeHands(const World& world, const Rendezvous& where, bool tentative, SteadyTime deadline,
                   SteadyTime last) {
  absl::StatusOr<Fd> fd = Connect(where.address, where.port, deadline);
  if (!fd.ok()) return Failed(fd.status(), IsRetryable(fd.status()));
  const absl::StatusOr<Digest> nonce = RandomBytes();
  if (!nonce.ok()) return Failed(nonce.status(), false);
  Introduction who{world.rank, world.size, world.epoch, *nonce, {}};
  const std::string hello = Frame(MessageType::kHello)
                                .U32(Introduction::kMagic)
                                .U32(Introduction::kVersion)
                                .I32(who.rank)
                                .I32(who.size)
                                .I32(who.epoch)
                                .Bytes(who.client_nonce)
                                .Done();
  std::string buffer;
  absl::Status sent = SendAll(fd->get(), hello, deadline);
  absl::StatusOr<std::string> body =
      sent.ok() ? ReceiveFrame(fd->get(), buffer, deadline) : absl::StatusOr<std::string>(sent);
  if (!body.ok()) {
    return Failed(Annotate(body.status(), StrCat("what listens at ", Place(where),
                                                 " does not answer as a rendezvous of this version "
                                                 "of capstan")),
                  true);
  }
  Fields challenge(*body);
  const auto type = static_cast<MessageType>(challenge.U8());
  who.server_nonce = challenge.Bytes();
  const Digest proof = challenge.Bytes();
  if (type != MessageType::kChallenge || !challenge.ok() ||
      !SameDigest(proof, ProofOfServer(where.secret, who))) {
    return Failed(UsageError("what listens at ", Place(where),
                             " does not know this job's secret: "
                             "another job has the port, or CAPSTAN_JOB_SECRET differs between the "
                             "ranks"),
                  tentative);
  }
  sent =
      SendAll(fd->get(), Frame(MessageType::kProof).Bytes(ProofOfClient(where.secret, who)).Done(),
              deadline);
  body = sent.ok() ? ReceiveFrame(fd->get(), buffer, last) : absl::StatusOr<std::string>(sent);
  if (!body.ok()) {
    return Failed(Annotate(body.status(), "the rendezvous broke off the handshake"), true);
  }
  Fields verdict(*body);
  const auto answer = static_cast<MessageType>(verdict.U8());
  if (answer == MessageType::kWelcome) {
    return {*std::move(fd), std::move(buffer), absl::OkStatus(), false};
  }
  const absl::Status refusal = verdict.Status();
  if (answer != MessageType::kRefused || refusal.ok()) {
    return Failed(BugError("the rendezvous answered with message ", static_cast<int>(answer)),
                  false);
  }
  return Failed(refusal, tentative);
}

// The file of a rendezvous for as long as somebody may look for it.
class FileOnLoan {
 public:
  FileOnLoan(std::string path, Rendezvous written)
      : path_(std::move(path)), written_(std::move(written)) {}
  ~FileOnLoan() { Remove(); }
  void Remove() { RemoveRendezvous(path_, written_); }

 private:
  const std::string path_;
  const Rendezvous written_;
};

class Joiner {
 public:
  Joiner(const World& world, const std::string& directory, double timeout_s, double attempt_s)
      : world_(world),
        timeout_s_(timeout_s),
        attempt_s_(attempt_s),
        deadline_(InSeconds(timeout_s)),
        path_(RendezvousPath(directory, world.job)),
        by_file_(world.secret.empty()) {}

  absl::StatusOr<Joined> Join() {
    Joined joined;
    Rendezvous where{world_.address, world_.port, world_.secret};
    if (world_.rank == 0 && !world_.embedded()) {
      CAPSTAN_RETURN_IF_ERROR(ChoosePlace(&where));
      CAPSTAN_ASSIGN_OR_RETURN(joined.server, Serve(&where));
    }
    CAPSTAN_RETURN_IF_ERROR(Connect(&where, &joined));
    joined.job = JobId(where.secret, world_.epoch);
    return joined;
  }

 private:
  bool one_machine() const { return world_.local_size == world_.size; }

  absl::Status ChoosePlace(Rendezvous* where) {
    const bool several = world_.local_size > 0 && !one_machine();
    if (several && IsLoopback(where->address)) {
      return UsageError("the ", world_.size, " ranks are on several machines (", world_.local_size,
                        " on this one), but MASTER_ADDR is ",
                        where->address.empty() ? "not set" : StrCat("'", where->address, "'"),
                        "; set it to an address of rank 0's machine that the others reach");
    }
    if (!by_file_) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(const Digest secret, RandomBytes());
    where->secret = ToHex(AsText(secret));
    where->port = 0;
    if (one_machine()) where->address.clear();  // no other machine has business here
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<BootstrapServer>> Serve(Rendezvous* where) {
    BootstrapServer::Options options;
    options.address = where->address;
    options.port = where->port;
    options.everywhere = !one_machine() && !IsLoopback(where->address);
    options.size = world_.size;
    options.epoch = world_.epoch;
    options.secret = where->secret;
    if (by_file_) {
      // Gone when all have joined, and at the latest with the server.
      auto file = std::make_shared<FileOnLoan>(path_, *where);
      options.all_joined = [file] { file->Remove(); };
    }
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<BootstrapServer> server,
                             BootstrapServer::Start(options));
    where->port = server->port();
    if (by_file_) CAPSTAN_RETURN_IF_ERROR(WriteRendezvous(path_, *where));
    return server;
  }

  absl::Status Connect(Rendezvous* where, Joined* joined) {
    const bool reads_file = by_file_ && world_.rank != 0;
    absl::Status refusal, last;
    for (int pause_ms = 10;; pause_ms = std::min(2 * pause_ms, 200)) {
      absl::Status found;
      if (reads_file) {
        absl::StatusOr<Rendezvous> read = ReadRendezvous(path_);
        found = read.status();
        if (read.ok()) *where = *std::move(read);
        if (!found.ok() && !IsRetryable(found)) return found;
        last = found;
      }
      if (found.ok()) {
        // A listener that accepts and says nothing must not take all of the time.
        Attempt attempt = ShakeHands(world_, *where, reads_file,
                                     std::min(deadline_, InSeconds(attempt_s_)), deadline_);
        if (attempt.status.ok()) {
          joined->connection = std::move(attempt.fd);
          joined->received = std::move(attempt.received);
          return absl::OkStatus();
        }
        if (!attempt.again) return attempt.status;
        if (StatusClass(attempt.status) == CAPSTAN_USAGE) refusal = attempt.status;
        last = attempt.status;
      }
      if (std::chrono::steady_clock::now() >= deadline_) return Late(refusal.ok() ? last : refusal);
      ::poll(nullptr, 0, std::min(pause_ms, MillisecondsUntil(deadline_)));
    }
  }

  absl::Status Late(const absl::Status& last) const {
    return MakeStatus(CAPSTAN_TIMEOUT,
                      StrCat("rank ", world_.rank, " could not join the job within ",
                             absl::StrFormat("%g s", timeout_s_), ": ", last.message(),
                             by_file_ ? "; was rank 0 started, and is run.dir the same folder on "
                                        "every machine? (Where it is not, set CAPSTAN_JOB_SECRET, "
                                        "MASTER_ADDR and MASTER_PORT.)"
                                      : "; was rank 0 started?"),
                      /*retryable=*/true, world_.rank == 0 || world_.embedded() ? -1 : 0);
  }

  const World& world_;
  const double timeout_s_, attempt_s_;
  const SteadyTime deadline_;
  const std::string path_;
  const bool by_file_;
};

}  // namespace

absl::StatusOr<Joined> JoinJob(const World& world, const std::string& directory, double timeout_s,
                               double attempt_s) {
  if (world.size > 1) return Joiner(world, directory, timeout_s, attempt_s).Join();
  Joined alone;
  CAPSTAN_ASSIGN_OR_RETURN(const Digest secret, RandomBytes());
  alone.job = ToHex(AsText(secret));
  return alone;
}

}  // namespace capstan
