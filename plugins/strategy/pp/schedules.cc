#include "plugins/strategy/pp/schedules.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "sdk/error.h"

namespace capstan::pp {
namespace {

void one_chunk(const Pipeline& p, const char* name) {
  if (p.chunks == 1) return;
  throw sdk::usage_error(sdk::text("[[strategy]] pp: schedule \"", name,
                                   "\" has one chunk a stage, but chunks = ", p.chunks,
                                   "; set chunks = 1 or schedule = \"interleaved\""));
}

// The steps of one stage whose passes need warm-up forwards before the first backward.
std::vector<Step> one_forward_one_backward(const Pipeline& p, int64_t stage, int64_t weight_delay) {
  std::vector<Step> out;
  const int64_t m = p.microbatches;
  const int64_t warm_up = std::min(m, p.stages - stage - 1);
  int64_t forward = 0, weight = 0;
  for (; forward < warm_up; ++forward) out.push_back({Work::kForward, stage, forward});
  for (int64_t backward = 0; backward < m; ++backward) {
    if (forward < m) out.push_back({Work::kForward, stage, forward++});
    out.push_back({Work::kBackward, stage, backward});
    if (weight_delay >= 0 && backward >= weight_delay)
      out.push_back({Work::kWeight, stage, weight++});
  }
  if (weight_delay >= 0) {
    for (; weight < m; ++weight) out.push_back({Work::kWeight, stage, weight});
  }
  return out;
}

}  // namespace

std::vector<Step> GPipe::steps(const Pipeline& p, int64_t stage) const {
  std::vector<Step> out;
  for (int64_t c = 0; c < p.chunks; ++c) {
    for (int64_t m = 0; m < p.microbatches; ++m)
      out.push_back({Work::kForward, c * p.stages + stage, m});
  }
  for (int64_t c = p.chunks; c-- > 0;) {
    for (int64_t m = 0; m < p.microbatches; ++m)
      out.push_back({Work::kBackward, c * p.stages + stage, m});
  }
  return out;
}

std::vector<Step> OneForwardOneBackward::steps(const Pipeline& p, int64_t stage) const {
  one_chunk(p, "1f1b");
  return one_forward_one_backward(p, stage, -1);
}

std::vector<Step> ZeroBubbleH1::steps(const Pipeline& p, int64_t stage) const {
  one_chunk(p, "zb_h1");
  return one_forward_one_backward(p, stage, stage);
}

std::vector<Step> Interleaved::steps(const Pipeline& p, int64_t stage) const {
  const int64_t v = p.chunks, s = p.stages, m = p.microbatches;
  if (v == 1) return one_forward_one_backward(p, stage, -1);
  if (m % s != 0) {
    throw sdk::usage_error(
        sdk::text("[[strategy]] pp: schedule \"interleaved\" runs microbatches in groups of ", s,
                  " (one a stage), which ", m,
                  " microbatches do not divide into; make batch.global give a "
                  "multiple, or use schedule = \"1f1b\" with chunks = 1"));
  }
  // The k-th forward (or backward) of a stage: groups of `s` microbatches go through all chunks.
  const auto at = [&](int64_t k, bool backward) {
    const int64_t group = k / (s * v), within = k % (s * v);
    const int64_t c = backward ? v - 1 - within / s : within / s;
    return Step{backward ? Work::kBackward : Work::kForward, c * s + stage, group * s + within % s};
  };
  const int64_t total = m * v;
  const int64_t warm_up = std::min(total, (s - stage - 1) * 2 + (v - 1) * s);
  std::vector<Step> out;
  int64_t forward = 0;
  for (; forward < warm_up; ++forward) out.push_back(at(forward, false));
  for (int64_t backward = 0; backward < total; ++backward) {
    if (forward < total) out.push_back(at(forward++, false));
    out.push_back(at(backward, true));
  }
  return out;
}

FromFile::FromFile(const std::string& path) : path_(path) {
  std::ifstream in(path);
  if (!in) {
    throw sdk::usage_error(
        sdk::text("[[strategy]] pp: schedule \"", path,
                  "\" is neither gpipe, 1f1b, interleaved or zb_h1 nor a file that "
                  "can be read"));
  }
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<Step> steps;
    for (std::string word; words >> word;) {
      Step step;
      const size_t dot = word.find('.');
      const std::string digits = word.substr(1, dot == std::string::npos ? dot : dot - 1);
      const auto number_in = [](const std::string& text, int64_t& out) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
        return error == std::errc() && end == text.data() + text.size() && out >= 0;
      };
      bool good = word[0] == 'F' || word[0] == 'B' || word[0] == 'W';
      good = good && number_in(digits, step.microbatch);
      if (dot != std::string::npos) good = good && number_in(word.substr(dot + 1), step.chunk);
      if (!good) {
        throw sdk::usage_error(
            sdk::text(path, ":", number, ": \"", word,
                      "\" is no step; write F, B or W, the microbatch, and .chunk "
                      "where a stage has several, as in F3 or B3.1"));
      }
      step.work = word[0] == 'F'   ? Work::kForward
                  : word[0] == 'B' ? Work::kBackward
                                   : Work::kWeight;
      splits_ = splits_ || step.work == Work::kWeight;
      steps.push_back(step);
    }
    if (!steps.empty()) stages_.push_back(std::move(steps));
  }
}

std::vector<Step> FromFile::steps(const Pipeline& p, int64_t stage) const {
  if (static_cast<int64_t>(stages_.size()) != p.stages) {
    throw sdk::usage_error(sdk::text(path_, " has ", stages_.size(),
                                     " lines of steps, but the pipeline has ", p.stages,
                                     " stages; write a line for each"));
  }
  std::vector<Step> out = stages_[static_cast<size_t>(stage)];
  std::set<std::tuple<int, int64_t, int64_t>> wanted;
  const char* letter = "FBW";
  for (int work = 0; work < (splits_ ? 3 : 2); ++work) {
    for (int64_t c = 0; c < p.chunks; ++c) {
      for (int64_t m = 0; m < p.microbatches; ++m) wanted.insert({work, c, m});
    }
  }
  const auto name = [&](int work, int64_t c, int64_t m) {
    return p.chunks == 1 ? sdk::text(letter[work], m) : sdk::text(letter[work], m, ".", c);
  };
  for (Step& step : out) {
    const int work = static_cast<int>(step.work);
    if (wanted.erase({work, step.chunk, step.microbatch}) == 0) {
      throw sdk::usage_error(sdk::text(path_, ": stage ", stage, " has ",
                                       name(work, step.chunk, step.microbatch),
                                       " twice, or has no such chunk or microbatch (", p.chunks,
                                       " chunks, ", p.microbatches, " microbatches)"));
    }
    step.chunk = step.chunk * p.stages + stage;
  }
  if (!wanted.empty()) {
    const auto& [work, c, m] = *wanted.begin();
    throw sdk::usage_error(sdk::text(path_, ": stage ", stage, " lacks ", name(work, c, m)));
  }
  return out;
}

std::unique_ptr<Schedule> make_schedule(const std::string& name) {
  if (name == "gpipe") return std::make_unique<GPipe>();
  if (name == "1f1b") return std::make_unique<OneForwardOneBackward>();
  if (name == "interleaved") return std::make_unique<Interleaved>();
  if (name == "zb_h1") return std::make_unique<ZeroBubbleH1>();
  return std::make_unique<FromFile>(name);
}

}  // namespace capstan::pp
