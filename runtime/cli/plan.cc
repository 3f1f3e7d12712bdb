// `capstan plan`: the bill of a number of parameters, or the ledger of a configured run.
#include <cstdio>
#include <memory>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/cli/cli.h"
#include "runtime/cli/memory_arithmetic.h"
#include "runtime/cli/plan_gpus.h"
#include "runtime/cli/plan_report.h"
#include "runtime/run/figures.h"
#include "runtime/run/host.h"
#include "runtime/run/session.h"
#include "runtime/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// What `plan --params` found out.
struct Bill {
  double parameters = 0;
  std::string precision, strategy;
  int64_t ranks = 1;
  BytesPerParameter each;
  MemoryBill alone;  // on one rank that holds everything
  MemoryBill rank;   // on each of `ranks`
  std::vector<Gpu> gpus;
};

absl::StatusOr<Bill> MakeBill(const PlanArguments& arguments) {
  Bill bill;
  bill.parameters = arguments.parameters;
  bill.precision = arguments.precision;
  bill.strategy = arguments.strategy;
  bill.ranks = arguments.ranks;
  CAPSTAN_ASSIGN_OR_RETURN(bill.alone, BillOf(bill.parameters, bill.precision, "", 1));
  CAPSTAN_ASSIGN_OR_RETURN(bill.rank,
                           BillOf(bill.parameters, bill.precision, bill.strategy, bill.ranks));
  CAPSTAN_ASSIGN_OR_RETURN(bill.each, BytesOf(bill.precision));
  if (arguments.gpu.empty()) {
    bill.gpus = KnownGpus();
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(const Gpu gpu, FindGpu(arguments.gpu));
    bill.gpus = {gpu};
  }
  return bill;
}

std::string Row(const Bill& b, const std::string& name, double each, double alone, double rank) {
  std::string row =
      absl::StrFormat("  %-16s %3.0f B a parameter %12s", name, each, GigabytesText(alone));
  if (b.ranks > 1) row += absl::StrFormat(" %12s a rank", GigabytesText(rank));
  return row;
}

std::string OptimizerRemark(const BytesPerParameter& each) {
  const double moment = each.moments / 2;
  std::string remark = absl::StrFormat("Adam's moments %.0f + %.0f", moment, moment);
  if (each.master > 0) remark = absl::StrFormat("fp32 master %.0f, ", each.master) + remark;
  return "   (" + remark + ")";
}

std::string FitLine(const Bill& b, const Gpu& gpu) {
  const double needs = b.rank.total(), has = gpu.bytes();
  std::string line = absl::StrFormat("  %-14s ", gpu.name);
  if (needs <= has) {
    return line + StrCat("fits: needs ", GigabytesText(needs), ", has ", GigabytesText(has), "; ",
                         GigabytesText(has - needs), " left for activations\n");
  }
  return line + StrCat("does not fit: needs ", GigabytesText(needs), ", has ", GigabytesText(has),
                       "; ", FewestRanks(b.alone, has), " GPUs at least with zero3\n");
}

// "14 + 14 + 84 = 112 GB".
std::string SumText(const MemoryBill& bill) {
  return absl::StrFormat("%.4g + %.4g + %.4g = %.4g GB", bill.parameters / 1e9,
                         bill.gradients / 1e9, bill.optimizer / 1e9, bill.total() / 1e9);
}

std::string BillText(const Bill& b) {
  std::string text = StrCat(CountText(b.parameters), " parameters, ", b.precision, " precision");
  if (b.ranks > 1) {
    StrAppend(&text, ", ", b.ranks, " ranks, ",
              b.strategy.empty() ? "each with a copy of everything" : b.strategy);
  }
  StrAppend(&text, ": ", SumText(b.rank), b.ranks > 1 ? " a rank\n" : "\n");
  StrAppend(&text, Row(b, "parameters", b.each.parameters, b.alone.parameters, b.rank.parameters),
            "\n");
  StrAppend(&text, Row(b, "gradients", b.each.gradients, b.alone.gradients, b.rank.gradients),
            "\n");
  StrAppend(&text,
            Row(b, "optimizer state", b.each.optimizer(), b.alone.optimizer, b.rank.optimizer),
            OptimizerRemark(b.each), "\n");
  StrAppend(&text, Row(b, "total", b.each.total(), b.alone.total(), b.rank.total()), "\n");
  text += "Activations come on top: plan CONFIG counts them. 1 GB is 1e9 bytes.\n\n";
  for (const Gpu& gpu : b.gpus) text += FitLine(b, gpu);
  return text;
}

Json BillJson(const MemoryBill& bill) {
  return {{"parameters", bill.parameters},
          {"gradients", bill.gradients},
          {"optimizer", bill.optimizer},
          {"total", bill.total()}};
}

std::string BillJsonText(const Bill& b) {
  Json gpus = Json::array();
  for (const Gpu& gpu : b.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"has_bytes", gpu.bytes()},
                    {"fits", b.rank.total() <= gpu.bytes()},
                    {"fewest_ranks_zero3", FewestRanks(b.alone, gpu.bytes())}});
  }
  const Json json = {{"params", b.parameters},
                     {"precision", b.precision},
                     {"strategy", b.strategy},
                     {"ranks", b.ranks},
                     {"bytes", BillJson(b.alone)},
                     {"bytes_a_rank", BillJson(b.rank)},
                     {"gpus", gpus}};
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> PlanParameters(const PlanArguments& arguments) {
  CAPSTAN_ASSIGN_OR_RETURN(const Bill bill, MakeBill(arguments));
  return arguments.json ? BillJsonText(bill) : BillText(bill);
}

absl::StatusOr<std::string> PlanConfig(const PlanArguments& arguments) {
  std::optional<Gpu> gpu;
  if (!arguments.gpu.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(gpu, FindGpu(arguments.gpu));
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  host->SetRanks({arguments.rank, arguments.world});
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(arguments.config, arguments.set, host.get()));
  CAPSTAN_ASSIGN_OR_RETURN(PlanReport report, MakePlanReport(*session, arguments.config));
  report.gpu = gpu;
  return arguments.json ? PlanJson(report) : PlanText(report);
}

}  // namespace

absl::StatusOr<int> PlanCommand(const PlanArguments& arguments) {
  const bool has_config = !arguments.config.empty(), has_parameters = arguments.parameters != 0;
  if (has_config == has_parameters) {
    return UsageError("plan takes a configuration file or --params N, ",
                      has_config ? "not both" : "for example: capstan plan --params 13e9");
  }
  if (has_config && (!arguments.strategy.empty() || arguments.ranks != 1 ||
                     arguments.precision != PlanArguments().precision)) {
    return UsageError(
        "--ranks, --strategy and --precision belong to --params; a configuration file says them "
        "in [mesh], [[strategy]] and [precision]");
  }
  if (!has_config && !arguments.set.empty()) {
    return UsageError("--set changes a configuration file; --params has none");
  }
  if (!arguments.strategy.empty() && arguments.ranks == 1) {
    return UsageError("--strategy ", arguments.strategy,
                      " divides memory among ranks; add --ranks");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                           has_config ? PlanConfig(arguments) : PlanParameters(arguments));
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

}  // namespace capstan
