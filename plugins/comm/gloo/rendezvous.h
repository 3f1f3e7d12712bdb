// How the ranks of a group find each other: addresses and proofs of membership through the bootstrap.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_RENDEZVOUS_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_RENDEZVOUS_H_

#include <gloo/rendezvous/store.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sdk/comm.h"

namespace capstan::gloo_comm {

// Gloo's store over the host's bootstrap, under a prefix of its own. A failing bootstrap throws
// sdk::Error through Gloo.
class BootstrapStore : public ::gloo::rendezvous::Store {
 public:
  BootstrapStore(const sdk::Bootstrap& bootstrap, std::string prefix)
      : bootstrap_(bootstrap), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  const sdk::Bootstrap& bootstrap_;
  std::string prefix_;
};

// What a rank shows to another to prove that it is of this job: random, for this pair and direction,
// known only through the bootstrap, which only ranks of the job can read.
using Proof = std::array<char, 16>;

struct Proofs {
  std::vector<Proof> to_show;    // by peer: what this rank shows it
  std::vector<Proof> to_expect;  // by peer: what it must show
};

// Exchanges the proofs of a group. Blocks with the job's deadline.
Proofs exchange_proofs(const sdk::Bootstrap& bootstrap, const std::string& prefix, size_t index,
                       size_t size);

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_RENDEZVOUS_H_
