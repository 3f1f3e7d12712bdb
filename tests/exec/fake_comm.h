// A communication backend that communicates with nobody. One at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plugin_api/comm.h"
#include "runtime/program/types.h"

namespace capstan {

// Notes what it is asked. What its operations, waits and groups do is the test's.
class FakeComm {
 public:
  FakeComm() { active = this; }
  ~FakeComm() { active = nullptr; }

  const capstan_comm_v1* vtable() {
    static const capstan_comm_v1 vtable = [] {
      capstan_comm_v1 v{};
      v.struct_size = sizeof(v);
      v.probe = [](const capstan_host*, int32_t* score) -> capstan_status* {
        *score = 1;
        return nullptr;
      };
      v.create = [](const capstan_host*, const capstan_options*, void** self) -> capstan_status* {
        *self = active;
        return nullptr;
      };
      v.destroy = [](void*) {};
      v.capabilities = [](void*, capstan_comm_capabilities* out) -> capstan_status* {
        *out = active->capabilities;
        return nullptr;
      };
      v.group_create = [](void*, const int32_t* ranks, size_t count, int64_t,
                          void** group) -> capstan_status* {
        active->groups.emplace_back(ranks, ranks + count);
        *group = active;
        if (active->while_grouping) active->while_grouping();
        return nullptr;
      };
      v.group_destroy = [](void*, void*) {};
      v.prepare = [](void*, void*, const capstan_comm_request* request,
                     void** operation) -> capstan_status* {
        active->reductions.push_back(request->reduce);
        if (active->while_preparing) active->while_preparing(*request);
        *operation = active;
        return nullptr;
      };
      v.release = [](void*, void*) {};
      v.start = [](void*, void*, void* queue) -> capstan_status* {
        active->queues.push_back(queue);
        return nullptr;
      };
      v.wait = [](void*, void*, double) -> capstan_status* {
        if (active->while_waiting) active->while_waiting();
        return nullptr;
      };
      v.poll = [](void*, void*, capstan_comm_progress* out) -> capstan_status* {
        *out = active->progress;
        return nullptr;
      };
      v.abort = [](void*, void*, const char* reason) { active->aborts.emplace_back(reason); };
      return v;
    }();
    return &vtable;
  }

  capstan_comm_capabilities capabilities{
      sizeof(capstan_comm_capabilities), 1, 1, 0, 0, nullptr, &kF32, 1};
  capstan_comm_progress progress{sizeof(capstan_comm_progress), 0, 0, -1, 0, {}};
  std::function<void()> while_grouping, while_waiting;
  std::function<void(const capstan_comm_request&)> while_preparing;
  std::vector<std::vector<int32_t>> groups;
  std::vector<int32_t> reductions;
  std::vector<void*> queues;
  std::vector<std::string> aborts;

 private:
  static inline FakeComm* active = nullptr;
};

}  // namespace capstan
