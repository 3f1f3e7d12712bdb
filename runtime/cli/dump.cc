#include <algorithm>
#include <cstdio>

#include "runtime/cli/cli.h"
#include "runtime/run/session.h"
#include "runtime/status.h"

namespace capstan {
namespace {

absl::StatusOr<std::unique_ptr<Program>> Compose(const Session& session, const std::string& name,
                                                 const PhaseObserver& observer) {
  const Ingredients& in = session.ingredients();
  if (name == "train") return ComposeTrain(in, observer);
  if (name == "eval") return ComposeEval(in, observer);
  GenerateShape shape;
  shape.cache_length = in.sequence;
  shape.tokens = name == "prefill" ? in.sequence : 1;
  if (name == "prefill") return ComposeGenerate(in, CAPSTAN_MODE_PREFILL, shape, observer);
  if (name == "decode") return ComposeGenerate(in, CAPSTAN_MODE_DECODE, shape, observer);
  return UsageError("--program ", name, ": there are train, eval, prefill and decode");
}

}  // namespace

absl::StatusOr<int> DumpCommand(const DumpArguments& arguments) {
  if (!arguments.before.empty() && !arguments.after.empty()) {
    return UsageError("--before and --after are alternatives; give one");
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HostEnvironment> host, HostEnvironment::Create());
  RankInfo ranks{arguments.rank, arguments.world};
  // Generation runs on one rank, whatever the mesh.
  ranks.alone = arguments.program == "prefill" || arguments.program == "decode";
  host->SetRanks(ranks);
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(arguments.config, arguments.set, host.get()));
  CAPSTAN_RETURN_IF_ERROR(session->device().status());
  const bool before = !arguments.before.empty();
  const std::string phase = before ? arguments.before : arguments.after;
  if (!phase.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<std::string> phases, PhaseOrder(session->ingredients()));
    if (std::find(phases.begin(), phases.end(), phase) == phases.end()) {
      std::string known;
      for (const std::string& p : phases) StrAppend(&known, known.empty() ? "" : ", ", p);
      return UsageError("there is no phase '", phase, "'; phases are ", known);
    }
  }
  std::string text;
  auto observe = [&](const Program& program, const std::string& now, bool is_before) {
    if (now == phase && is_before == before) text = DumpProgram(program);
  };
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Program> program,
                           Compose(*session, arguments.program, observe));
  if (phase.empty()) text = DumpProgram(*program);
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

}  // namespace capstan
