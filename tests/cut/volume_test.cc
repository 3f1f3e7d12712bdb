// What `capstan plan` says a rank of a cut model communicates in a step: by axis and op, as the
// strategies' READMEs have it.
#include <map>

#include "nlohmann/json.hpp"
#include "tests/cut/cut_fixture.h"

namespace capstan::cut_test {
namespace {

// kGpt2: 4 layers, 32 channels, 256 words; microbatches of one sequence of 16 tokens, in fp32.
constexpr int64_t kHidden = 16 * 32 * 4, kEmbedding = 256 * 32 * 4, kScalar = 4;

struct Moved {
  int64_t launches = 0, payload = 0, sent = 0;
  bool operator==(const Moved&) const = default;
};

void PrintTo(const Moved& m, std::ostream* out) {
  *out << m.launches << " launches, " << m.payload << " bytes, " << m.sent << " sent";
}

class CutVolume : public Cut {
 protected:
  // By "axis op".
  std::map<std::string, Moved> Of(const Composition& composition, int rank) {
    const Outcome plan = Command("plan", composition, {"--json", "--rank", std::to_string(rank)});
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    std::map<std::string, Moved> moved;
    const auto report = nlohmann::json::parse(plan.out, nullptr, false);
    for (const auto& row : report["communication"]) {
      moved[row["axis"].get<std::string>() + " " + row["op"].get<std::string>()] = {
          row["launches"], row["payload_bytes"], row["sent_bytes"]};
    }
    return moved;
  }
};

// An all-reduce of n bytes over t ranks sends 2 n (t - 1) / t; beside those of the layers, the step has
// a stop signal and a gradient norm.
TEST_F(CutVolume, TensorParallelismAllReducesFourTimesALayer) {
  for (const int64_t t : {2, 4}) {
    const auto moved = Of({kGpt2, "tp=" + std::to_string(t), "tp", ""}, 1);
    const int64_t m = 8, reduced = m * (4 * 2 + 1);
    EXPECT_EQ(moved.at("tp reduce_from_group"),
              (Moved{reduced, reduced * kHidden, reduced * kHidden * 2 * (t - 1) / t}));
    EXPECT_EQ(moved.at("tp all_reduce").launches, reduced + 2);
    EXPECT_EQ(moved.at("tp all_reduce").payload, reduced * kHidden + 2 * kScalar);
    // Three numbers a token and rank, for the loss.
    EXPECT_EQ(moved.at("tp all_gather").payload, m * t * 16 * 3 * 4);
    EXPECT_EQ(moved.size(), 3u);
  }
}

// Scatters and gathers send as much as the all-reduces, but for the two gathers a layer of what was
// not kept.
TEST_F(CutVolume, SequenceParallelismSendsAsMuchAndGathersTwiceMore) {
  const int64_t t = 4, m = 8;
  const auto moved = Of({kGpt2, "tp=4", "tp sp", ""}, 1);
  const int64_t scattered = m * (4 * 2 + 1) + m * (4 * 2 + 1);
  const int64_t gathered = scattered + m * (4 * 2 + 1);
  EXPECT_EQ(moved.at("tp reduce_scatter"),
            (Moved{scattered, scattered * kHidden, scattered * kHidden * (t - 1) / t}));
  const Moved& gathers = moved.at("tp all_gather");
  EXPECT_EQ(gathers.launches, gathered + m);  // of the loss, too
  EXPECT_EQ(gathers.payload, gathered * kHidden + m * t * 16 * 3 * 4);
}

TEST_F(CutVolume, AStageSendsOneHiddenStateAMicrobatchEachWay) {
  const int64_t m = 8;
  for (int stage = 0; stage < 4; ++stage) {
    const auto moved = Of({kGpt2, "pp=4", "pp", ""}, stage);
    const bool first = stage == 0, last = stage == 3;
    // The first and the last have the embedding, and tell each other its gradient.
    const int64_t tied = first || last ? 1 : 0, forward = last ? 0 : m, backward = first ? 0 : m;
    const auto at = [&](const char* op) {
      const auto found = moved.find(op);
      return found == moved.end() ? Moved{} : found->second;
    };
    const int64_t bytes = forward * kHidden + tied * kEmbedding;
    EXPECT_EQ(at("pp send"), (Moved{forward + tied, bytes, bytes})) << stage;
    EXPECT_EQ(at("pp send_grad"), (Moved{backward, backward * kHidden, backward * kHidden}))
        << stage;
    EXPECT_EQ(at("pp recv").launches, backward + tied) << stage;
    EXPECT_EQ(at("pp recv_grad").launches, forward) << stage;
    // A stop signal, the loss and the gradient norm.
    EXPECT_EQ(at("pp all_reduce").payload, 3 * kScalar) << stage;
  }
}

// Under sp a stage sends its part of the sequence.
TEST_F(CutVolume, AxesDivideEachOthersVolume) {
  const auto whole = Of({kGpt2, "pp=2", "pp", ""}, 0);
  const auto cut = Of({kGpt2, "tp=2 pp=2", "tp sp pp", ""}, 0);
  EXPECT_EQ(cut.at("pp send").payload * 2, whole.at("pp send").payload);
  EXPECT_EQ(cut.at("pp recv_grad").payload * 2, whole.at("pp recv_grad").payload);
  const auto alone = Of({kGpt2, "dp=2", "dp", ""}, 0);
  const auto stage = Of({kGpt2, "tp=2 pp=2 dp=2", "tp sp pp dp", ""}, 0);
  const auto gradients = [](const std::map<std::string, Moved>& moved) {
    int64_t sum = 0;
    for (const auto& [key, m] : moved) sum += key.starts_with("dp ") ? m.payload : 0;
    return sum;
  };
  EXPECT_GT(gradients(alone), 3 * gradients(stage));
}

}  // namespace
}  // namespace capstan::cut_test
