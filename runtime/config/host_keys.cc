#include "runtime/config/host_keys.h"

#include <cstdlib>
#include <iterator>
#include <limits>

namespace capstan {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// Far beyond any run; sums and products of two such counts of tokens or steps stay in 64 bits.
constexpr double kMostCount = 1e15;
constexpr double kMostSequences = 1 << 24;
constexpr double kSmallestPositive = std::numeric_limits<double>::min();

constexpr capstan_option Key(int32_t type, const char* name, const char* fallback,
                             const char* doc) {
  return {sizeof(capstan_option), name, type, 0, fallback, 0, 0, 0, 0, nullptr, doc};
}

constexpr capstan_option AtLeast(double minimum, capstan_option option) {
  option.minimum = minimum;
  option.maximum = kNoLimit;
  option.has_range = 1;
  return option;
}

constexpr capstan_option Between(double minimum, double maximum, capstan_option option) {
  option.minimum = minimum;
  option.maximum = maximum;
  option.has_range = 1;
  return option;
}

constexpr capstan_option Required(capstan_option option) {
  option.required = 1;
  return option;
}

constexpr capstan_option OneOf(const char* choices, capstan_option option) {
  option.choices = choices;
  return option;
}

constexpr capstan_option kRun[] = {
    Key(CAPSTAN_OPTION_STRING, "name", nullptr, "Name of the run; by default the file's."),
    Key(CAPSTAN_OPTION_PATH, "dir", nullptr,
        "Where metrics, checkpoints and this configuration go; by default runs/<name> in the "
        "current directory."),
    Between(1, kMostCount,
            Key(CAPSTAN_OPTION_INT, "steps", nullptr, "Optimizer steps of the whole run.")),
    Between(1, kMostCount,
            Key(CAPSTAN_OPTION_INT, "tokens", nullptr, "Tokens to train on, instead of steps.")),
    AtLeast(kSmallestPositive, Key(CAPSTAN_OPTION_FLOAT, "epochs", nullptr,
                                   "Passes over the data, instead of steps.")),
    AtLeast(0, Key(CAPSTAN_OPTION_INT, "seed", "1337",
                   "Seed of initial weights, data order and dropout.")),
};

constexpr capstan_option kComm[] = {
    Between(0.001, 1e8,
            Key(CAPSTAN_OPTION_FLOAT, "timeout_s", "300.0",
                "Seconds to wait for another rank before giving up.")),
};

constexpr capstan_option kModel[] = {
    Key(CAPSTAN_OPTION_PATH, "weights", "\"\"",
        "Folder with config.json and *.safetensors to start from; empty: random weights."),
    Key(CAPSTAN_OPTION_STRINGS, "trainable", "[\"*\"]", "Patterns of the parameters to train."),
};

constexpr capstan_option kData[] = {
    Required(AtLeast(
        1, Key(CAPSTAN_OPTION_INT, "sequence_length", nullptr, "Positions in one sequence."))),
    AtLeast(0, Key(CAPSTAN_OPTION_INT, "validation.every", "0",
                   "Steps between validations; 0: never.")),
    Between(
        1, kMostSequences,
        Key(CAPSTAN_OPTION_INT, "validation.batches", "20", "Global batches in one validation.")),
};

constexpr capstan_option kBatch[] = {
    Between(1, kMostSequences,
            Key(CAPSTAN_OPTION_INT, "micro", "1", "Sequences a rank holds at once.")),
    Required(Between(1, kMostSequences,
                     Key(CAPSTAN_OPTION_INT, "global", nullptr, "Sequences in one step."))),
};

constexpr capstan_option kOptimizer[] = {
    Required(AtLeast(0, Key(CAPSTAN_OPTION_FLOAT, "lr", nullptr, "Highest learning rate."))),
    AtLeast(0, Key(CAPSTAN_OPTION_FLOAT, "weight_decay", "0.0",
                   "Weight decay of parameters with two or more dims.")),
    AtLeast(0, Key(CAPSTAN_OPTION_FLOAT, "clip_norm", "1.0",
                   "Largest global gradient norm; 0: no clipping.")),
    OneOf("constant|linear|cosine|wsd", Key(CAPSTAN_OPTION_STRING, "schedule.kind", "\"constant\"",
                                            "Shape of the learning rate over steps.")),
    Between(0, kMostCount,
            Key(CAPSTAN_OPTION_INT, "schedule.warmup_steps", "0",
                "Steps of the linear rise from zero.")),
    Between(0, kMostCount,
            Key(CAPSTAN_OPTION_INT, "schedule.decay_steps", "0",
                "Steps of the final fall of wsd; 0: a tenth of the run.")),
    AtLeast(0, Key(CAPSTAN_OPTION_FLOAT, "schedule.min_lr", "0.0", "Learning rate at the end.")),
};

constexpr capstan_option kOptimizerGroup[] = {
    Required(Key(CAPSTAN_OPTION_STRINGS, "match", nullptr,
                 "Patterns of the parameter names in this group.")),
    Required(AtLeast(0, Key(CAPSTAN_OPTION_FLOAT, "lr", nullptr, "Highest learning rate."))),
    AtLeast(0, Key(CAPSTAN_OPTION_FLOAT, "weight_decay", "0.0", "Weight decay.")),
};

constexpr capstan_option kCheckpoint[] = {
    AtLeast(0, Key(CAPSTAN_OPTION_INT, "every", "0",
                   "Steps between checkpoints; 0: only when the run ends.")),
    AtLeast(0, Key(CAPSTAN_OPTION_INT, "keep", "3", "Newest checkpoints to keep; 0: all.")),
};

constexpr capstan_option kSelectors[] = {
    Key(CAPSTAN_OPTION_STRING, "plugin", nullptr, "Name of the plugin, or path of its file."),
    Key(CAPSTAN_OPTION_PATH, "plugin_path", nullptr, "File of the plugin, instead of a search."),
    Key(CAPSTAN_OPTION_STRING, "id", nullptr,
        "What --set calls this entry; by default its plugin."),
};

template <size_t N>
OptionTable TableOf(const capstan_option (&options)[N]) {
  return OptionTable(options, N);
}

}  // namespace

const std::vector<Section>& Sections() {
  static const std::vector<Section> sections = {
      {"run", nullptr, nullptr, false, TableOf(kRun)},
      {"device", "device", "cpu", false, {}},
      {"comm", "comm", "shm", false, TableOf(kComm)},
      {"mesh", nullptr, nullptr, false, {}},
      {"model", "model", nullptr, false, TableOf(kModel)},
      {"objective", "objective", "causal_lm", false, {}},
      {"data", "dataset", nullptr, false, TableOf(kData)},
      {"batch", nullptr, nullptr, false, TableOf(kBatch)},
      {"optimizer", "optimizer", nullptr, false, TableOf(kOptimizer)},
      {"precision", "precision", "fp32", false, {}},
      {"strategy", "strategy", nullptr, true, {}},
      {"checkpoint", "store", "safetensors", false, TableOf(kCheckpoint)},
      {"tracker", "tracker", "jsonl", true, {}},
      {"driver", "driver", "train", false, {}},
  };
  return sections;
}

const Section& FindSection(std::string_view table) {
  for (const Section& section : Sections()) {
    if (section.table == table) return section;
  }
  std::abort();  // callers name sections by literals of the list above
}

const OptionTable& SelectorKeys(bool many) {
  static const OptionTable one(kSelectors, std::size(kSelectors) - 1);
  static const OptionTable all(kSelectors, std::size(kSelectors));
  return many ? all : one;
}

const OptionTable& OptimizerGroupKeys() {
  static const OptionTable table = TableOf(kOptimizerGroup);
  return table;
}

}  // namespace capstan
