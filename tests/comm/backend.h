// A comm backend through its vtable: groups and operations that clean up after themselves.
// A status where none is due is thrown as sdk::Error.
#ifndef CAPSTAN_TESTS_COMM_BACKEND_H_
#define CAPSTAN_TESTS_COMM_BACKEND_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plugin_api/comm.h"
#include "sdk/error.h"
#include "tests/comm/conformance.h"

namespace capstan::test {

struct Backend {
  const capstan_comm_v1& comm;
  void* self;
  int rank;
  int world;
  ConformanceOptions options;
};

// A group as one of its members has it.
class Group {
 public:
  Group(const Backend& backend, std::vector<int32_t> ranks)
      : backend_(backend), ranks_(std::move(ranks)) {
    index_ =
        static_cast<size_t>(std::find(ranks_.begin(), ranks_.end(), backend.rank) - ranks_.begin());
    sdk::check(
        backend_.comm.group_create(backend_.self, ranks_.data(), ranks_.size(), 0, &handle_));
  }
  ~Group() { backend_.comm.group_destroy(backend_.self, handle_); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const Backend& backend() const { return backend_; }
  const std::vector<int32_t>& ranks() const { return ranks_; }
  size_t size() const { return ranks_.size(); }
  size_t index() const { return index_; }
  void* handle() const { return handle_; }

 private:
  const Backend& backend_;
  std::vector<int32_t> ranks_;
  size_t index_ = 0;
  void* handle_ = nullptr;
};

// A prepared operation.
class Prepared {
 public:
  Prepared(const Group& group, const capstan_comm_request& request) : backend_(group.backend()) {
    sdk::check(backend_.comm.prepare(backend_.self, group.handle(), &request, &operation_));
  }
  ~Prepared() { backend_.comm.release(backend_.self, operation_); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  void start() { sdk::check(backend_.comm.start(backend_.self, operation_, nullptr)); }
  void wait() {
    sdk::check(backend_.comm.wait(backend_.self, operation_, backend_.options.timeout_s));
  }
  // What the wait says.
  capstan_status* wait(double seconds) {
    return backend_.comm.wait(backend_.self, operation_, seconds);
  }
  void run() {
    start();
    wait();
  }

 private:
  const Backend& backend_;
  void* operation_ = nullptr;
};

}  // namespace capstan::test

#endif  // CAPSTAN_TESTS_COMM_BACKEND_H_
