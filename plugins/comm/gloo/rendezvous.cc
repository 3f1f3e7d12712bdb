#include "plugins/comm/gloo/rendezvous.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace capstan::gloo_comm {
namespace {

void fill_random(char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = getrandom(to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw sdk::resource_error(sdk::text("no random numbers: ", std::strerror(errno)));
    }
    to += got;
    bytes -= static_cast<size_t>(got);
  }
}

}  // namespace

void BootstrapStore::set(const std::string& key, const std::vector<char>& data) {
  bootstrap_.put(prefix_ + key, std::string_view(data.data(), data.size()));
}

std::vector<char> BootstrapStore::get(const std::string& key) {
  const std::string value = bootstrap_.get(prefix_ + key);
  return {value.begin(), value.end()};
}

void BootstrapStore::wait(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) static_cast<void>(bootstrap_.get(prefix_ + key));
}

// The bootstrap has the job's deadline, which is the one that counts.
void BootstrapStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) {
  wait(keys);
}

Proofs exchange_proofs(const sdk::Bootstrap& bootstrap, const std::string& prefix, size_t index,
                       size_t size) {
  Proofs out;
  out.to_show.resize(size);
  out.to_expect.resize(size);
  const size_t bytes = size * sizeof(Proof);
  fill_random(out.to_show.front().data(), bytes);
  bootstrap.put(sdk::text(prefix, "proofs/", index),
                std::string_view(out.to_show.front().data(), bytes));
  for (size_t r = 0; r < size; ++r) {
    if (r == index) continue;
    const std::string theirs = bootstrap.get(sdk::text(prefix, "proofs/", r));
    if (theirs.size() != bytes) {
      throw sdk::bug_error(sdk::text("member ", r, " of a group of ", size,
                                     " forms it with another number of members"));
    }
    std::memcpy(out.to_expect[r].data(), theirs.data() + index * sizeof(Proof), sizeof(Proof));
  }
  return out;
}

}  // namespace capstan::gloo_comm
