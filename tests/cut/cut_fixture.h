// Tiny models cut over meshes: their configurations, their Programs and their runs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/strategies/composed.h"

namespace capstan::cut_test {

using cli_test::Capstan;
using cli_test::Folder;
using cli_test::Outcome;
using cli_test::ReadAll;
using strategies_test::Rank;

// What [model] says. The uneven ones have heads, channels, words, positions and layers that 2 and 4
// ranks do not share evenly.
extern const char *const kGpt2, *const kGpt2Uneven, *const kLlama, *const kLlamaUneven;

// A model on a mesh. `mesh`: "tp=2 pp=2". `strategies`: by name, in order, with options:
// "tp sp pp:schedule=zb_h1,chunks=2". `set`: overrides, "batch.micro=2 model.dropout=0.1".
struct Composition {
  const char* model = "";
  std::string mesh, strategies, set;
};

void PrintTo(const Composition& composition, std::ostream* out);

// "gpt2_tp2_pp2_tp_sp_pp_schedule_zb_h1": names a test.
std::string NameOf(const Composition& composition);
std::vector<std::string> Words(const std::string& text, char separator = ' ');

class Cut : public testing::Test {
 protected:
  // The configuration as a file, with `set` in it as arguments of the command line.
  std::string Config(const Composition& composition);
  // `capstan COMMAND CONFIG --set ... EXTRA...`
  Outcome Command(const std::string& command, const Composition& composition,
                  const std::vector<std::string>& extra = {});
  // Pseudo-random text, tokenised into data/, which the configurations read.
  void MakeData();
  // The train Program of a rank; a failure fails the test.
  std::unique_ptr<Rank> Compose(const Composition& composition, int64_t rank, int64_t world);

  Folder folder_;

 private:
  int configs_ = 0;
};

}  // namespace capstan::cut_test
