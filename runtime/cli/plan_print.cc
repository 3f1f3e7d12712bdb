// The report of `plan CONFIG` as text and as JSON.
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/cli/plan_report.h"
#include "runtime/run/figures.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::pair<std::string, int64_t>>;

// Parts of the arena at its peak; they sum to its size.
Rows PeakParts(const ArenaPeak& peak) {
  return {{"forward activations", peak.activations},
          {"backward activations", peak.gradients_of_activations},
          {"communication", peak.communication},
          {"kernel workspace", peak.workspace},
          {"gaps between them", peak.padding}};
}

// "of microbatch 3", "each of microbatches 4 to 7": consecutive ones that keep as much. None where
// there is one microbatch.
Rows MicrobatchParts(const ArenaPeak& peak) {
  Rows rows;
  if (peak.by_microbatch.size() < 2) return rows;
  for (auto at = peak.by_microbatch.begin(); at != peak.by_microbatch.end();) {
    auto last = at, next = std::next(at);
    while (next != peak.by_microbatch.end() && next->first == last->first + 1 &&
           next->second == at->second) {
      last = next++;
    }
    rows.emplace_back(last == at ? StrCat("  of microbatch ", at->first)
                                 : StrCat("  each of ", at->first, " to ", last->first),
                      at->second);
    at = next;
  }
  return rows;
}

Rows ParameterParts(const ParameterCounts& p) {
  return {{"embeddings", p.embeddings},
          {"matrices of layers", p.layers},
          {"other matrices", p.head},
          {"norms and biases", p.vectors}};
}

std::string Line(const std::string& name, int64_t value, const std::string& remark) {
  return absl::StrFormat("  %-22s %22s   %s\n", name, GroupedText(value), remark);
}

std::string HeadText(const PlanReport& r) {
  std::string text =
      StrCat(r.config, ": ", r.model, ", ", r.precision, ", ", absl::StrJoin(r.optimizers, " + "));
  if (!r.strategies.empty()) StrAppend(&text, ", ", absl::StrJoin(r.strategies, " + "));
  return StrCat(text, ", device ", r.device, "\n", r.rank, r.rank.empty() ? "" : "\n");
}

std::string ParameterText(const PlanReport& r) {
  const ParameterCounts& p = r.parameters;
  std::string text = StrCat("\nparameters\n");
  for (const auto& [name, n] : ParameterParts(p)) {
    if (n > 0) text += Line(name, n, PercentText(static_cast<double>(n) / p.total));
  }
  text += Line("total", p.total, CountText(static_cast<double>(p.total)));
  text += Line(
      "trainable", p.trainable,
      p.trainable == p.total ? "all" : PercentText(static_cast<double>(p.trainable) / p.total));
  if (!r.rank.empty()) {
    text += Line("held by this rank", p.held, PercentText(static_cast<double>(p.held) / p.total));
  }
  return text;
}

std::string MemoryText(const PlanReport& r) {
  std::string text =
      StrCat("\nmemory of a rank, in bytes (programs ", absl::StrJoin(r.programs, ", "), ")\n");
  for (const auto& [name, bytes] : r.regions) text += Line(name, bytes, BytesText(bytes));
  text += Line("total", r.total, BytesText(r.total));
  text += Line("external, at most", r.external,
               StrCat(BytesText(r.external), " that libraries take for themselves"));
  StrAppend(&text, "\nactivations at their peak, ", r.peak.at, "\n");
  bool first = true;
  for (const auto& [name, bytes] : PeakParts(r.peak)) {
    if (bytes > 0) text += Line(name, bytes, BytesText(bytes));
    if (!std::exchange(first, false)) continue;
    for (const auto& [part, each] : MicrobatchParts(r.peak))
      text += Line(part, each, BytesText(each));
  }
  return text;
}

std::string CommunicationText(const PlanReport& r) {
  if (r.communication.empty()) return "";
  std::string text =
      "\ncommunication of a step, of this rank\n"
      "  axis  op                 launches        tensors    sends at least\n";
  for (const CommCount& c : r.communication) {
    absl::StrAppendFormat(&text, "  %-5s %-18s %8d %14s %17s\n", c.axis, c.kind, c.launches,
                          BytesText(c.payload), BytesText(c.sent));
  }
  return text;
}

std::string ComputeText(const PlanReport& r) {
  const auto row = [&](const char* name, double flops) {
    return absl::StrFormat("  %-22s %14s a step   %14s a token\n", name, FlopsText(flops),
                           FlopsText(flops / static_cast<double>(r.tokens)));
  };
  return StrCat(
      "\ncompute of a step of ", GroupedText(r.tokens), " tokens", r.rank.empty() ? "" : " a rank",
      " (", r.microbatches, r.microbatches == 1 ? " microbatch of " : " microbatches of ",
      r.micro_batch, " x ", r.sequence, ")\n", row("all launches", r.step_flops),
      row("3 x forward (MFU)", r.model_flops), row("6 N + 12 L H D T", r.rule_flops),
      "  N = ", GroupedText(r.parameters.in_products),
      " parameters in matrix products; the rule counts attention uncut by causality",
      r.rank.empty() ? "\n"
                     : "\n  and shares all work evenly among the ranks that cut the model\n");
}

std::string OpsText(const PlanReport& r) {
  std::string text = absl::StrFormat("\nops of the train program\n  %-30s %8s %14s %14s\n", "kind",
                                     "ops", "launches/step", "FLOPs/step");
  int64_t ops = 0, launches = 0;
  for (const OpCount& op : r.ops) {
    text += absl::StrFormat("  %-30s %8s %14s %14s  %6s\n", op.kind, GroupedText(op.ops),
                            GroupedText(op.launches), FlopsText(op.flops),
                            r.step_flops > 0 ? PercentText(op.flops / r.step_flops) : "");
    ops += op.ops;
    launches += op.launches;
  }
  text += absl::StrFormat("  %-30s %8s %14s %14s\n", "all", GroupedText(ops), GroupedText(launches),
                          FlopsText(r.step_flops));
  if (r.reinterprets.empty()) return text;
  text += "\nplacements taken on trust (reinterpret)\n";
  for (const std::string& use : r.reinterprets) StrAppend(&text, "  ", use, "\n");
  return text;
}

// "needs 2.0 GB, has 24.0 GB": fits or does not.
std::string Verdict(const std::string& what, double needed, double has) {
  return StrCat(what, ": ", needed <= has ? "fits" : "does not fit", ": needs ",
                GigabytesText(needed), ", has ", GigabytesText(has), "\n");
}

std::string FitText(const PlanReport& r) {
  std::string text =
      "\n" + Verdict("this machine", r.needed(), static_cast<double>(r.machine_total));
  if (r.needed() <= r.machine_total && r.needed() > r.machine_free) {
    text.pop_back();
    StrAppend(&text, ", of which only ", GigabytesText(r.machine_free), " are free now\n");
  }
  if (r.gpu) {
    // Another device's kernels want other workspace; its libraries' share is unknown here.
    text += Verdict(r.gpu->name, static_cast<double>(r.total), r.gpu->bytes());
    text.pop_back();
    StrAppend(&text, " (workspace as device ", r.device.substr(0, r.device.find(' ')),
              " needs it)\n");
  }
  return text;
}

Json PartsJson(const Rows& rows) {
  Json object = Json::object();
  for (const auto& [name, value] : rows) object[name] = value;
  return object;
}

}  // namespace

std::string PlanText(const PlanReport& r) {
  return StrCat(HeadText(r), ParameterText(r), MemoryText(r), CommunicationText(r), ComputeText(r),
                OpsText(r), FitText(r));
}

std::string PlanJson(const PlanReport& r) {
  Json parameters = {{"total", r.parameters.total}, {"trainable", r.parameters.trainable}};
  parameters["in_products"] = r.parameters.in_products;
  parameters["held"] = r.parameters.held;
  parameters["parts"] = PartsJson(ParameterParts(r.parameters));
  Json ops = Json::array();
  for (const OpCount& op : r.ops) {
    ops.push_back(
        {{"kind", op.kind}, {"ops", op.ops}, {"launches", op.launches}, {"flops", op.flops}});
  }
  Json fits = {{"machine",
                {{"has_bytes", r.machine_total},
                 {"free_bytes", r.machine_free},
                 {"fits", r.needed() <= static_cast<double>(r.machine_total)}}}};
  if (r.gpu) {
    fits["gpu"] = {{"name", r.gpu->name},
                   {"has_bytes", static_cast<int64_t>(r.gpu->bytes())},
                   {"fits", static_cast<double>(r.total) <= r.gpu->bytes()}};
  }
  Json in_flight = Json::array();
  for (const auto& [microbatch, bytes] : r.peak.by_microbatch) {
    in_flight.push_back({{"microbatch", microbatch}, {"bytes", bytes}});
  }
  Json communication = Json::array();
  for (const CommCount& c : r.communication) {
    communication.push_back({{"axis", c.axis},
                             {"op", c.kind},
                             {"launches", c.launches},
                             {"payload_bytes", c.payload},
                             {"sent_bytes", c.sent}});
  }
  const Json report = {
      {"config", r.config},
      {"model", r.model},
      {"precision", r.precision},
      {"optimizers", r.optimizers},
      {"strategies", r.strategies},
      {"device", r.device},
      {"rank", r.rank},
      {"programs", r.programs},
      {"batch",
       {{"micro", r.micro_batch},
        {"microbatches", r.microbatches},
        {"sequence_length", r.sequence},
        {"tokens", r.tokens}}},
      {"parameters", parameters},
      {"memory",
       {{"regions", PartsJson(r.regions)},
        {"total_bytes", r.total},
        {"external_bytes", r.external},
        {"activations_peak",
         {{"at", r.peak.at},
          {"parts", PartsJson(PeakParts(r.peak))},
          {"microbatches", in_flight}}}}},
      {"flops", {{"step", r.step_flops}, {"model", r.model_flops}, {"rule", r.rule_flops}}},
      {"ops", ops},
      {"communication", communication},
      {"reinterpret", r.reinterprets},
      {"fits", fits}};
  return report.dump(2) + "\n";
}

}  // namespace capstan
