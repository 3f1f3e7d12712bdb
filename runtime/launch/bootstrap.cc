#include "runtime/launch/bootstrap.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "runtime/launch/bootstrap_server.h"
#include "runtime/launch/join.h"
#include "runtime/launch/meeting.h"
#include "runtime/launch/wire.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// The store answers when a deadline passes. This much later it is itself what does not answer.
double Patience(double timeout_s) { return timeout_s + std::clamp(timeout_s / 4, 0.5, 5.0); }

// What the other ranks are told of this rank's failure.
absl::Status ForOthers(int rank, const absl::Status& reason) {
  const int32_t its_class = StatusClass(reason);
  const bool of_another = CulpritRank(reason) >= 0 && CulpritRank(reason) != rank &&
                          (its_class == CAPSTAN_PEER_LOST || its_class == CAPSTAN_TIMEOUT);
  return MakeStatus(
      CAPSTAN_PEER_LOST,
      StrCat("rank ", rank, of_another ? " reports: " : " failed: ", reason.message()),
      IsRetryable(reason), of_another ? CulpritRank(reason) : rank);
}

}  // namespace

class Bootstrap::Impl {
 public:
  Impl(const World& world, double timeout_s, Joined joined)
      : rank_(world.rank),
        size_(world.size),
        in_launcher_(world.embedded()),
        timeout_s_(timeout_s),
        joined_(std::move(joined)) {
    if (!joined_.connection.open()) return;
    sigset_t all, before;  // signals are the main thread's to take
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    reader_ = std::thread([this] { Read(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Impl() {
    if (joined_.server != nullptr && !finished_ && state().ok()) {
      joined_.server->Abort(MakeStatus(CAPSTAN_PEER_LOST, "rank 0 ended before it finished",
                                       /*retryable=*/true, 0));
    }
    closing_ = true;
    if (joined_.connection.open()) ::shutdown(joined_.connection.get(), SHUT_RDWR);
    if (reader_.joinable()) reader_.join();
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& job() const { return joined_.job; }
  double timeout_s() const { return timeout_s_; }

  absl::Status Put(std::string_view key, std::string_view value) {
    if (value.size() > kLongestValue) {
      return UsageError("the value of the bootstrap key '", key, "' has ", value.size(),
                        " bytes; the store takes up to ", kLongestValue,
                        ": large data belongs into a collective");
    }
    if (size_ == 1) {
      std::lock_guard lock(mutex_);
      if (!state_.ok()) return state_;
      alone_[std::string(key)] = value;
      changed_.notify_all();
      return absl::OkStatus();
    }
    return Ask(Frame(MessageType::kPut), timeout_s_, [&](Frame& f) { f.Text(key).Text(value); })
        .status();
  }

  absl::StatusOr<std::string> Get(std::string_view key, double timeout_s) {
    if (size_ > 1) {
      return Ask(Frame(MessageType::kGet), timeout_s,
                 [&](Frame& f) { f.Text(key).F64(timeout_s); });
    }
    std::unique_lock lock(mutex_);
    const std::string name(key);
    changed_.wait_until(lock, InSeconds(timeout_s),
                        [&] { return !state_.ok() || alone_.count(name) != 0; });
    if (!state_.ok()) return state_;
    const auto found = alone_.find(name);
    if (found != alone_.end()) return found->second;
    return TimeoutError("waited ", absl::StrFormat("%g s", timeout_s), " for the key '", key,
                        "', which this process, the only rank, has not put");
  }

  absl::StatusOr<std::vector<std::string>> Exchange(std::string_view name, std::string_view value) {
    if (size_ == 1) return std::vector<std::string>{std::string(value)};
    if (value.size() > kLongestValue) {
      return UsageError("'", name, "' exchanges ", value.size(), " bytes of rank ", rank_,
                        "; all ranks together may have ", kLongestValue);
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string all,
                             Ask(Frame(MessageType::kExchange), timeout_s_,
                                 [&](Frame& f) { f.Text(name).F64(timeout_s_).Text(value); }));
    std::vector<std::string> values;
    Fields fields(all);
    for (int r = 0; r < size_; ++r) values.emplace_back(fields.Text());
    if (!fields.ok()) return BugError("the rendezvous answered '", name, "' with a broken list");
    return values;
  }

  void Abort(const absl::Status& reason) {
    if (reason.ok()) return;
    {
      std::lock_guard lock(mutex_);
      if (!state_.ok() || finished_) return;
      state_ = reason;
      told_ = true;  // the one who says it need not be told
      changed_.notify_all();
    }
    const absl::Status for_others = ForOthers(rank_, reason);
    if (joined_.server != nullptr) {
      joined_.server->Abort(for_others);
    } else if (joined_.connection.open()) {
      Send(Frame(MessageType::kAbort).Status(for_others).Done()).IgnoreError();
    }
  }

  absl::Status state() const {
    std::lock_guard lock(mutex_);
    return state_;
  }

  void OnAbort(std::function<void(const absl::Status&)> told) {
    std::lock_guard one_call(callback_mutex_);
    {
      std::lock_guard lock(mutex_);
      on_abort_ = std::move(told);
    }
    TellLocked();
  }

  absl::Status Finish() {
    {
      std::lock_guard lock(mutex_);
      if (finished_ || !state_.ok()) return state_;
      finished_ = true;
    }
    if (size_ == 1) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(Send(Frame(MessageType::kBye).Done()));
    if (joined_.server == nullptr) return absl::OkStatus();
    const std::vector<int> left = joined_.server->WaitUntilAllLeft(timeout_s_);
    if (left.empty()) return absl::OkStatus();
    return MakeStatus(CAPSTAN_TIMEOUT,
                      StrCat(RanksText(left), " did not finish within ",
                             absl::StrFormat("%g s", timeout_s_), " of this rank"),
                      /*retryable=*/true, left.size() == 1 ? left[0] : -1);
  }

 private:
  struct Pending {
    bool done = false;
    absl::Status status;
    std::string value;
  };

  std::string Holder() const { return in_launcher_ ? "the launcher" : "rank 0"; }
  absl::Status HolderGone(int32_t status_class, const std::string& what) const {
    return MakeStatus(status_class, StrCat("the rendezvous in ", Holder(), " ", what),
                      /*retryable=*/true, in_launcher_ ? -1 : 0);
  }

  absl::Status Send(const std::string& bytes) {
    std::lock_guard one_frame(send_mutex_);
    return SendAll(joined_.connection.get(), bytes, InSeconds(timeout_s_));
  }

  template <typename Fill>
  absl::StatusOr<std::string> Ask(Frame frame, double timeout_s, Fill fill) {
    Pending answer;
    const uint64_t id = next_id_++;
    {
      std::lock_guard lock(mutex_);
      if (!state_.ok()) return state_;
      if (finished_) return BugError("the rendezvous is asked after Finish");
      pending_[id] = &answer;
    }
    frame.U64(id);
    fill(frame);
    const SteadyTime deadline = InSeconds(Patience(timeout_s));
    const absl::Status sent = Send(frame.Done());
    std::unique_lock lock(mutex_);
    if (sent.ok()) {
      changed_.wait_until(lock, deadline, [&] { return answer.done || !state_.ok(); });
    }
    pending_.erase(id);
    if (answer.done)
      return answer.status.ok() ? absl::StatusOr<std::string>(std::move(answer.value))
                                : answer.status;
    if (!state_.ok()) return state_;
    if (!sent.ok()) return HolderGone(CAPSTAN_PEER_LOST, StrCat("is gone: ", sent.message()));
    return HolderGone(
        CAPSTAN_TIMEOUT,
        StrCat("has not answered for ", absl::StrFormat("%g s", timeout_s), "; is it stopped?"));
  }

  // The reader's thread.
  void Read() {
    std::string buffer = std::move(joined_.received);
    for (;;) {
      for (;;) {
        absl::StatusOr<std::optional<std::string>> body = TakeFrame(buffer, kLongestFrame);
        if (!body.ok()) return End(body.status());
        if (!body->has_value()) break;
        Take(**body);
      }
      const absl::Status received = ReceiveSome(joined_.connection.get(), buffer, InSeconds(3600));
      if (closing_) return;
      if (StatusClass(received) == CAPSTAN_TIMEOUT) continue;
      if (!received.ok()) return End(HolderGone(CAPSTAN_PEER_LOST, "is gone"));
    }
  }

  void Take(std::string_view body) {
    Fields fields(body);
    const auto type = static_cast<MessageType>(fields.U8());
    if (type == MessageType::kAborted) return End(fields.Status());
    if (type != MessageType::kReply) return;
    const uint64_t id = fields.U64();
    const absl::Status status = fields.Status();
    const std::string_view value = fields.Text();
    std::lock_guard lock(mutex_);
    const auto found = pending_.find(id);
    if (found == pending_.end() || !fields.ok()) return;
    *found->second = {true, status, std::string(value)};
    changed_.notify_all();
  }

  void End(const absl::Status& reason) {
    {
      std::lock_guard lock(mutex_);
      if (finished_ || !state_.ok() || reason.ok()) return;
      state_ = reason;
      changed_.notify_all();
    }
    std::lock_guard one_call(callback_mutex_);
    TellLocked();
  }

  void TellLocked() {
    std::function<void(const absl::Status&)> call;
    absl::Status reason;
    {
      std::lock_guard lock(mutex_);
      if (told_ || state_.ok() || !on_abort_) return;
      told_ = true;
      call = on_abort_;
      reason = state_;
    }
    call(reason);
  }

  const int rank_, size_;
  const bool in_launcher_;
  const double timeout_s_;
  Joined joined_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status state_;
  bool finished_ = false, told_ = false;
  std::map<uint64_t, Pending*> pending_;
  std::map<std::string, std::string> alone_;  // the store of a world of one
  std::function<void(const absl::Status&)> on_abort_;

  std::mutex callback_mutex_;  // held around on_abort_'s call
  std::mutex send_mutex_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> closing_{false};
  std::thread reader_;
};

Bootstrap::Bootstrap(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bootstrap::~Bootstrap() = default;

absl::StatusOr<std::unique_ptr<Bootstrap>> Bootstrap::Join(const World& world,
                                                           const BootstrapOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(Joined joined, JoinJob(world, options.directory, options.timeout_s));
  return std::unique_ptr<Bootstrap>(
      new Bootstrap(std::make_unique<Impl>(world, options.timeout_s, std::move(joined))));
}

int Bootstrap::rank() const { return impl_->rank(); }
int Bootstrap::size() const { return impl_->size(); }
const std::string& Bootstrap::job() const { return impl_->job(); }
absl::Status Bootstrap::Put(std::string_view key, std::string_view value) {
  return impl_->Put(key, value);
}
absl::StatusOr<std::string> Bootstrap::Get(std::string_view key, double timeout_s) {
  return impl_->Get(key, timeout_s > 0 ? timeout_s : impl_->timeout_s());
}
absl::StatusOr<std::vector<std::string>> Bootstrap::ExchangeStrings(std::string_view name,
                                                                    std::string_view value) {
  return impl_->Exchange(name, value);
}
absl::Status Bootstrap::Barrier(std::string_view name) {
  return impl_->Exchange(name, "").status();
}
void Bootstrap::Abort(const absl::Status& reason) { impl_->Abort(reason); }
absl::Status Bootstrap::state() const { return impl_->state(); }
void Bootstrap::OnAbort(std::function<void(const absl::Status&)> told) {
  impl_->OnAbort(std::move(told));
}
absl::Status Bootstrap::Finish() { return impl_->Finish(); }

// ---- the plugins' view -------------------------------------------------------------------------

namespace {

capstan_status* NoRendezvous() {
  return ToC(UnsupportedError("this command has no ranks that could meet"));
}

}  // namespace

capstan_status* BootstrapPut(Bootstrap* bootstrap, const char* key, const void* value,
                             size_t size) {
  if (bootstrap == nullptr) return NoRendezvous();
  return ToC(bootstrap->Put(key, {static_cast<const char*>(value), size}));
}

capstan_status* BootstrapGet(Bootstrap* bootstrap, const char* key, const void** value,
                             size_t* size) {
  thread_local std::string lent;
  if (bootstrap == nullptr) return NoRendezvous();
  absl::StatusOr<std::string> got = bootstrap->Get(key);
  if (!got.ok()) return ToC(got.status());
  lent = *std::move(got);
  *value = lent.data();
  *size = lent.size();
  return nullptr;
}

}  // namespace capstan
