#include "runtime/run/trace.h"

#include "nlohmann/json.hpp"
#include "runtime/status.h"

namespace capstan {

std::string TraceJson(const Program& program, const std::vector<LaunchTime>& times, int rank,
                      int world) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", rank},
                    {"args", {{"name", StrCat("rank ", rank)}}}});
  const int64_t origin = times.empty() || world > 1 ? 0 : times.front().begin_ns;
  for (const LaunchTime& t : times) {
    const Op& op = program.op(t.op);
    nlohmann::ordered_json event;
    event["name"] = t.wait ? StrCat("wait for ", op.kind()) : op.kind();
    event["cat"] = program.segments()[op.segment].name;
    event["ph"] = "X";
    event["ts"] = 1e-3 * static_cast<double>(t.begin_ns - origin);
    event["dur"] = 1e-3 * static_cast<double>(t.end_ns - t.begin_ns);
    event["pid"] = rank;
    event["tid"] = 0;
    event["args"] = {
        {"op", program.OpText(t.op)}, {"layer", op.layer}, {"microbatch", t.microbatch}};
    events.push_back(std::move(event));
  }
  return nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

absl::StatusOr<double> ModelFlops(const Program& eval, int64_t sequences) {
  double forward = 0;
  for (const Segment& s : eval.segments()) {
    for (OpId o : s.ops) {
      CAPSTAN_ASSIGN_OR_RETURN(OpCost cost, eval.Cost(o));
      forward += cost.flops;
    }
  }
  return 3.0 * forward * static_cast<double>(sequences) /
         static_cast<double>(eval.options().micro_batch_size);
}

}  // namespace capstan
