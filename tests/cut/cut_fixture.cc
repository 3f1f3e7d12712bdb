#include "tests/cut/cut_fixture.h"

#include <cctype>
#include <sstream>

#include "runtime/strings.h"

namespace capstan::cut_test {

const char* const kGpt2 =
    "plugin = \"gpt2\"\nlayers = 4\nwidth = 32\nheads = 4\nvocabulary = 256\nmax_sequence = 16\n";
const char* const kGpt2Uneven =
    "plugin = \"gpt2\"\nlayers = 3\nwidth = 30\nheads = 5\nvocabulary = 257\nmax_sequence = 16\n";
const char* const kLlama =
    "plugin = \"llama\"\nlayers = 4\nwidth = 32\nheads = 4\nkv_heads = 2\nmlp_width = 48\n"
    "vocabulary = 256\nmax_sequence = 16\n";
const char* const kLlamaUneven =
    "plugin = \"llama\"\nlayers = 3\nwidth = 36\nheads = 6\nkv_heads = 3\nmlp_width = 37\n"
    "vocabulary = 259\nmax_sequence = 16\ntie_embeddings = true\n";

namespace {

// A value as TOML: numbers, booleans, lists and what is quoted as they are, words in quotes.
std::string Quoted(const std::string& value) {
  const bool bare = value == "true" || value == "false" || value[0] == '[' || value[0] == '"' ||
                    std::isdigit(static_cast<unsigned char>(value[0])) != 0;
  return bare ? value : StrCat("\"", value, "\"");
}

// "pp:schedule=zb_h1,chunks=2" as a table. A list keeps its commas: "split=[1,2]".
std::string Table(const std::string& strategy) {
  const size_t colon = strategy.find(':');
  std::string text = StrCat("[[strategy]]\nplugin = \"", strategy.substr(0, colon), "\"\n");
  if (colon == std::string::npos) return text;
  std::string option;
  int open = 0;
  for (const char c : strategy.substr(colon + 1) + ",") {
    if (c == ',' && open == 0) {
      const size_t equals = option.find('=');
      StrAppend(&text, option.substr(0, equals), " = ", Quoted(option.substr(equals + 1)), "\n");
      option.clear();
      continue;
    }
    open += c == '[' ? 1 : c == ']' ? -1 : 0;
    option += c;
  }
  return text;
}

std::string ConfigText(const Composition& c) {
  std::string text = StrCat(R"([run]
name = "cut"
dir = "run"
steps = 2
seed = 7
[device]
plugin = "cpu"
threads = 1
[comm]
plugin = "shm"
timeout_s = 50
[model]
)",
                            c.model, R"([data]
plugin = "tokens"
sequence_length = 16
[[data.source]]
path = "data/train-*.ctok"
[batch]
micro = 1
global = 8
[optimizer]
plugin = "adamw"
lr = 1e-3
# Where a gradient all but cancels, AdamW with a tiny eps makes steps of full length of its rounding.
eps = 1e-3
clip_norm = 1.0
[checkpoint]
plugin = "safetensors"
)");
  if (!c.mesh.empty()) StrAppend(&text, "[mesh]\n");
  for (const std::string& axis : Words(c.mesh)) StrAppend(&text, axis, "\n");
  for (const std::string& strategy : Words(c.strategies)) StrAppend(&text, Table(strategy));
  return text;
}

}  // namespace

std::vector<std::string> Words(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, separator);) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

void PrintTo(const Composition& composition, std::ostream* out) { *out << NameOf(composition); }

std::string NameOf(const Composition& c) {
  const char* model = c.model == kGpt2          ? "gpt2"
                      : c.model == kGpt2Uneven  ? "gpt2_uneven"
                      : c.model == kLlama       ? "llama"
                      : c.model == kLlamaUneven ? "llama_uneven"
                                                : "model";
  const std::string text = StrCat(model, "_", c.mesh, "_", c.strategies, "_", c.set);
  const auto is = [&](size_t i, int (*kind)(int)) {
    return i < text.size() && kind(static_cast<unsigned char>(text[i])) != 0;
  };
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is(i, std::isalnum)) {
      name += text[i];
    } else if (name.back() != '_' && !(text[i] == '=' && is(i + 1, std::isdigit))) {
      name += '_';
    }
  }
  if (name.back() == '_') name.pop_back();
  return name;
}

std::string Cut::Config(const Composition& composition) {
  return folder_.Write(StrCat("config", configs_++, ".toml"), ConfigText(composition));
}

Outcome Cut::Command(const std::string& command, const Composition& composition,
                     const std::vector<std::string>& extra) {
  std::vector<std::string> arguments = {command, Config(composition)};
  for (const std::string& item : Words(composition.set)) {
    arguments.insert(arguments.end(), {"--set", item});
  }
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  return Capstan(arguments);
}

void Cut::MakeData() {
  std::string text;
  uint32_t state = 12345;
  for (int i = 0; i < 4000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += "a stage works while its neighbours do, too\n"[(state >> 24) % 43];
  }
  folder_.Write("text.txt", text);
  const Outcome made =
      Capstan({"data", "tokenize", folder_ / "text.txt", "--out", folder_ / "data"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
}

std::unique_ptr<Rank> Cut::Compose(const Composition& composition, int64_t rank, int64_t world) {
  return strategies_test::Composed(Config(composition), rank, world, Words(composition.set));
}

}  // namespace capstan::cut_test
