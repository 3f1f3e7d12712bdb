#include "runtime/cli/cli.h"

#include <cstdio>
#include <exception>
#include <functional>

#include "CLI/CLI.hpp"
#include "runtime/loader.h"
#include "runtime/status.h"

namespace capstan {
namespace {

// Parsed arguments of every command, and the one that was chosen.
struct CommandLine {
  TrainArguments train;
  VerifyArguments verify;
  TimelineArguments timeline;
  DumpArguments dump;
  PlanArguments plan;
  GenerateArguments generate;
  TokenizeArguments tokenize;
  ExportArguments export_weights;
  std::string plugin;
  bool json = false;
  std::function<absl::StatusOr<int>()> chosen;
};

void AddSet(CLI::App* command, std::vector<std::string>& set) {
  command
      ->add_option("--set", set,
                   "Override a key of the config: --set optimizer.lr=1e-3, --set strategy.tp.KEY=V "
                   "(repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void AddRank(CLI::App* command, int64_t& rank, int64_t& world) {
  command->add_option("--rank", rank, "Which rank of the mesh")->check(CLI::Range(0, 1 << 30));
  command->add_option("--world", world, "Number of ranks, where [mesh] leaves it open")
      ->check(CLI::Range(1, 1 << 30));
}

void AddTrain(CLI::App& app, CommandLine& line) {
  CLI::App* c = app.add_subcommand(
      "train", "Train a config; resumes from the newest complete checkpoint of its run directory");
  c->add_option("config", line.train.config, "TOML file")->required();
  AddSet(c, line.train.set);
  c->add_option("--ranks", line.train.ranks, "Ranks to start on this machine")
      ->check(CLI::Range(1, 1 << 20));
  c->add_option("--max-restarts", line.train.max_restarts, "Restarts after a lost rank")
      ->check(CLI::Range(0, 1 << 20));
  c->add_flag("--fresh", line.train.fresh, "Refuse to continue an existing run");
  c->add_flag("--trace", line.train.trace,
              "Write a trace of the last step into the run directory (opens in Perfetto)");
  c->add_option("--stop-after", line.train.stop_after)->group("");
  c->add_option("--snapshot", line.train.snapshot)->group("");
  c->add_flag("--alone", line.train.alone)->group("");
  c->callback([&line] { line.chosen = [&line] { return TrainCommand(line.train); }; });
}

void AddVerify(CLI::App& app, CommandLine& line) {
  CLI::App* c = app.add_subcommand(
      "verify", "Run a config on its mesh and on one rank, and compare what they compute");
  c->add_option("config", line.verify.config, "TOML file")->required();
  AddSet(c, line.verify.set);
  c->add_option("--steps", line.verify.steps, "Steps of each run")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  c->add_option("--ranks", line.verify.ranks, "Number of ranks, where [mesh] leaves it open")
      ->check(CLI::Range(1, 1 << 20));
  c->add_option(
       "--tolerance", line.verify.tolerance,
       "Largest error allowed; by default what the components declare (1e-5 for exact ones)")
      ->check(CLI::Range(0.0, 1.0));
  c->add_flag("--json", line.verify.json, "Print JSON");
  c->callback([&line] { line.chosen = [&line] { return VerifyCommand(line.verify); }; });
}

// CLI::Range takes what is not a number.
CLI::Validator Finite(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return "";
        return StrCat("must be a number from ", low, " to ", high, ", not ", text);
      },
      "FLOAT");
}

void AddTimeline(CLI::App& app, CommandLine& line) {
  CLI::App* c = app.add_subcommand(
      "timeline", "When each pipeline stage works and waits: predicted, and as traces measured it");
  c->add_option("config", line.timeline.config, "TOML file")->required();
  AddSet(c, line.timeline.set);
  c->add_option("--world", line.timeline.world, "Number of ranks, where [mesh] leaves it open")
      ->check(CLI::Range(1, 1 << 30));
  c->add_option("--hop-ms", line.timeline.hop_ms, "Time of a message from a stage to the next")
      ->check(Finite(0.0, 1e9));
  c->add_option("--flops", line.timeline.flops,
                "FLOP/s of a rank; by default this device's matrix rate, measured")
      ->check(Finite(1.0, 1e30));
  c->add_option("--svg", line.timeline.svg, "Draw into this file, idle time shaded");
  c->add_flag("--json", line.timeline.json, "Print JSON");
  c->callback([&line] { line.chosen = [&line] { return TimelineCommand(line.timeline); }; });
}

void AddInspect(CLI::App& app, CommandLine& line) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Memory and FLOPs of a config, or of a parameter count, without allocating anything");
  plan->add_option("config", line.plan.config, "TOML file; or give --params");
  AddSet(plan, line.plan.set);
  plan->add_option("--params", line.plan.parameters, "Number of parameters, for example 13e9");
  plan->add_option("--precision", line.plan.precision, "With --params: mixed, fp32 or bf16")
      ->capture_default_str();
  plan->add_option("--ranks", line.plan.ranks, "With --params: ranks that share the bill")
      ->check(CLI::Range(1, 1 << 24));
  plan->add_option("--strategy", line.plan.strategy, "With --params: zero1, zero2 or zero3");
  plan->add_option("--gpu", line.plan.gpu, "Does it fit this GPU? (\"A100 80GB\", \"H100\", ...)");
  AddRank(plan, line.plan.rank, line.plan.world);
  plan->add_flag("--json", line.plan.json, "Print JSON");
  plan->callback([&line] { line.chosen = [&line] { return PlanCommand(line.plan); }; });

  CLI::App* dump = app.add_subcommand("dump", "Print a Program as text");
  dump->add_option("config", line.dump.config, "TOML file")->required();
  AddSet(dump, line.dump.set);
  dump->add_option("--before", line.dump.before, "As it stands before this phase");
  dump->add_option("--after", line.dump.after, "As it stands after this phase");
  dump->add_option("--program", line.dump.program, "train, eval, prefill or decode")
      ->capture_default_str();
  AddRank(dump, line.dump.rank, line.dump.world);
  dump->callback([&line] { line.chosen = [&line] { return DumpCommand(line.dump); }; });
}

void AddGenerate(CLI::App& app, CommandLine& line) {
  CLI::App* c = app.add_subcommand("generate", "Sample text from a run, with a KV cache");
  c->add_option("run", line.generate.run, "Run directory, or one of its checkpoints")->required();
  c->add_option("--prompt", line.generate.prompt, "Text to continue")->required();
  c->add_option("--tokens", line.generate.tokens, "Tokens to sample")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  c->add_option("--temperature", line.generate.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  c->add_option("--top-k", line.generate.top_k, "Sample among the k likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 24));
  c->add_option("--top-p", line.generate.top_p,
                "Sample among the likeliest tokens of this total probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  c->add_option("--seed", line.generate.seed, "Of the draws");
  c->add_option("--tokenizer", line.generate.tokenizer, "Tokenizer plugin")->capture_default_str();
  AddSet(c, line.generate.set);
  c->callback([&line] { line.chosen = [&line] { return GenerateCommand(line.generate); }; });
}

void AddData(CLI::App& app, CommandLine& line) {
  CLI::App* data = app.add_subcommand("data", "Prepare training data");
  data->require_subcommand(1);
  CLI::App* c = data->add_subcommand("tokenize", "Turn text files into token shards");
  c->add_option("inputs", line.tokenize.inputs, "Text files or directories; - for standard input")
      ->required();
  c->add_option("--out", line.tokenize.output, "Directory of the shards")->required();
  c->add_option("--tokenizer", line.tokenize.tokenizer, "Tokenizer plugin")->capture_default_str();
  c->add_option("--shard-tokens", line.tokenize.shard_tokens, "Tokens in one shard at most")
      ->capture_default_str();
  c->add_option("--validation-fraction", line.tokenize.validation_fraction,
                "Share of every input held out for validation")
      ->check(CLI::Range(0.0, 0.999));
  c->callback([&line] { line.chosen = [&line] { return TokenizeCommand(line.tokenize); }; });
}

void AddPlugins(CLI::App& app, CommandLine& line) {
  CLI::App* plugins = app.add_subcommand("plugins", "What is installed");
  plugins->require_subcommand(1);
  CLI::App* list = plugins->add_subcommand("list", "Every component on the search path");
  list->add_flag("--json", line.json, "Print JSON");
  list->callback([&line] { line.chosen = [&line] { return PluginsListCommand(line.json); }; });
  CLI::App* show =
      plugins->add_subcommand("show", "One component: its options and what it defines");
  show->add_option("name", line.plugin, "Id, kind/id, or the path of a plugin")->required();
  show->add_flag("--json", line.json, "Print JSON");
  show->callback(
      [&line] { line.chosen = [&line] { return PluginsShowCommand(line.plugin, line.json); }; });
}

void AddExport(CLI::App& app, CommandLine& line) {
  CLI::App* c = app.add_subcommand("export", "Write the weights of a run as a Hugging Face folder");
  c->add_option("run", line.export_weights.run, "Run directory, or one of its checkpoints")
      ->required();
  c->add_option("output", line.export_weights.output, "Folder to make")->required();
  c->callback([&line] { line.chosen = [&line] { return ExportCommand(line.export_weights); }; });
}

}  // namespace

int RunCommandLine(int argc, char** argv) {
  CommandLine line;
  CLI::App app("Capstan trains transformer language models, composed of plugins in one TOML file.",
               "capstan");
  app.require_subcommand(1);
  app.set_version_flag("--version", HostVersionText());
  AddTrain(app, line);
  AddVerify(app, line);
  AddTimeline(app, line);
  AddInspect(app, line);
  AddGenerate(app, line);
  AddData(app, line);
  AddPlugins(app, line);
  AddExport(app, line);
  try {  // CLI11 reports through exceptions; nothing beyond parsing is inside
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  absl::StatusOr<int> code = line.chosen();
  // The printed lines of `train` are a convenience; of other commands they are the result.
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (lost && code.ok() && !app.got_subcommand("train")) {
    code = ResourceError("cannot write all of the output; is the disk of standard output full?");
  }
  if (code.ok()) return *code;
  std::fprintf(stderr, "capstan: %s\n", std::string(code.status().message()).c_str());
  return ExitCode(code.status());
}

}  // namespace capstan
