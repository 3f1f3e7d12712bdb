// The rendezvous of a job: a small key-value store, and exchanges that end when every rank has come.
//
// It runs on a thread of its own, in the launcher or in rank 0. It serves whoever proves to know the
// job's secret, one connection a rank. A rank whose connection breaks before it said goodbye ends the
// job: every other rank is told at once, whether it waits here or not.
//
// Start-up costs this one process work linear in the world size, and an exchange moves the square of
// it in bytes: for short values only. That is fine for hundreds of ranks; a tree of forwarders is what
// thousands want.
#ifndef CAPSTAN_RUNTIME_LAUNCH_BOOTSTRAP_SERVER_H_
#define CAPSTAN_RUNTIME_LAUNCH_BOOTSTRAP_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

class BootstrapServer {
 public:
  struct Options {
    std::string address;      // "": loopback
    int port = 0;             // 0: any
    bool everywhere = false;  // a name that means loopback here listens on every interface
    int size = 1;             // ranks of the job
    int epoch = 0;
    std::string secret;
    double handshake_s = 10;           // a stranger is let go after this long
    std::function<void()> all_joined;  // called once, on the server's thread
  };

  static absl::StatusOr<std::unique_ptr<BootstrapServer>> Start(const Options& options);
  ~BootstrapServer();  // drops whoever is still connected
  BootstrapServer(const BootstrapServer&) = delete;
  BootstrapServer& operator=(const BootstrapServer&) = delete;

  int port() const;

  // Ends the job: every rank's present and later requests fail with this. The first one counts.
  // [any thread]
  void Abort(const absl::Status& reason);
  // Until every rank has said goodbye or is gone; gives those who have not when the time is up.
  // [any thread]
  std::vector<int> WaitUntilAllLeft(double seconds);

 private:
  class Loop;
  explicit BootstrapServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_BOOTSTRAP_SERVER_H_
