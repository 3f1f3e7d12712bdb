#include "plugins/strategy/pp/schedules.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

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

// "1 stage", "2 stages"; a count of microbatches too.
std::string counted(int64_t n, const char* noun) {
  const bool hissing = std::string_view(noun).ends_with("ch");
  return sdk::text(n, " ", noun, n == 1 ? "" : hissing ? "es" : "s");
}

bool number_in(std::string_view text, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= 0;
}

// F3, B3.1 of a step whose chunk is the stage's.
std::string step_name(const Step& s, const Pipeline& p) {
  const std::string chunk = p.chunks > 1 || s.chunk > 0 ? sdk::text(".", s.chunk) : "";
  return sdk::text("FBW"[static_cast<int>(s.work)], s.microbatch, chunk);
}

// F3, B3.1; the chunk as it is written. nullopt: something else.
std::optional<Step> step_of(std::string_view word) {
  constexpr std::string_view kLetters = "FBW";
  const size_t letter = kLetters.find(word[0]);
  if (letter == std::string_view::npos) return std::nullopt;
  Step step{static_cast<Work>(letter), 0, 0};
  const size_t dot = std::min(word.find('.'), word.size());
  bool good = number_in(word.substr(1, dot - 1), step.microbatch);
  if (dot < word.size()) good = good && number_in(word.substr(dot + 1), step.chunk);
  return good ? std::optional(step) : std::nullopt;
}

}  // namespace

std::vector<Step> GPipe::steps(const Pipeline& p, int64_t stage) const {
  one_chunk(p, "gpipe");
  std::vector<Step> out;
  for (const Work work : {Work::kForward, Work::kBackward}) {
    for (int64_t m = 0; m < p.microbatches; ++m) out.push_back({work, stage, m});
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

namespace {

// The start of a word of a file, which may be any bytes.
std::string printable(const std::string& word) {
  constexpr size_t kMost = 40;
  std::string text;
  for (const char c : word.substr(0, kMost)) text += c > ' ' && c < 127 ? c : '?';
  return word.size() > kMost ? text + "..." : text;
}

}  // namespace

FromFile::FromFile(const std::string& path) : path_(path) {
  constexpr std::uintmax_t kMostBytes = 64 << 20;
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error) &&
                       std::filesystem::file_size(path, error) <= kMostBytes;
  std::ifstream in;
  if (is_file) in.open(path);
  if (!is_file || !in) {
    throw sdk::usage_error(sdk::text(
        "[[strategy]] pp: schedule_file \"", path, "\" cannot be read; give a file (of at most ",
        kMostBytes >> 20,
        " MiB) with a line of steps for each stage, or leave it out for one of the ", "schedules"));
  }
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    read_line(line.substr(0, line.find('#')), number);
  }
}

void FromFile::read_line(const std::string& text, int64_t number) {
  std::istringstream words(text);
  Line line{number, {}};
  for (std::string word; words >> word;) {
    const std::optional<Step> step = step_of(word);
    if (!step) {
      throw sdk::usage_error(sdk::text(path_, ":", number, ": \"", printable(word),
                                       "\" is no step; write F, B or W, the microbatch, and .chunk "
                                       "where a stage has several, as in F3 or B3.1"));
    }
    splits_ = splits_ || step->work == Work::kWeight;
    line.steps.push_back(*step);
  }
  if (!line.steps.empty()) stages_.push_back(std::move(line));
}

std::vector<Step> FromFile::steps(const Pipeline& p, int64_t stage) const {
  if (static_cast<int64_t>(stages_.size()) != p.stages) {
    throw sdk::usage_error(sdk::text(
        path_, " has ", counted(static_cast<int64_t>(stages_.size()), "line"),
        " of steps, but the pipeline has ", counted(p.stages, "stage"), "; write a line for each"));
  }
  for (int64_t s = 0; s < p.stages; ++s) check(p, s, stages_[static_cast<size_t>(s)]);
  play(p);
  std::vector<Step> out = stages_[static_cast<size_t>(stage)].steps;
  for (Step& s : out) s.chunk = s.chunk * p.stages + stage;
  return out;
}

void FromFile::check(const Pipeline& p, int64_t stage, const Line& line) const {
  const auto refuse = [&](const auto&... what) {
    throw sdk::usage_error(sdk::text(path_, ":", line.number, ": stage ", stage, " ", what...));
  };
  const auto name = [&](const Step& s) { return step_name(s, p); };
  std::map<std::tuple<Work, int64_t, int64_t>, size_t> place;  // in the line
  for (size_t i = 0; i < line.steps.size(); ++i) {
    const Step& s = line.steps[i];
    if (s.chunk >= p.chunks || s.microbatch >= p.microbatches) {
      refuse("has ", name(s), ", but there are ", counted(p.chunks, "chunk"), " a stage and ",
             counted(p.microbatches, "microbatch"), ", numbered from 0");
    }
    if (!place.try_emplace({s.work, s.chunk, s.microbatch}, i).second)
      refuse("has ", name(s), " twice; take one out");
  }
  for (int64_t c = 0; c < p.chunks; ++c) {
    for (int64_t m = 0; m < p.microbatches; ++m) {
      std::optional<Step> before;
      for (const Work work : {Work::kForward, Work::kBackward, Work::kWeight}) {
        if (work == Work::kWeight && !splits_) continue;
        const Step step{work, c, m};
        const auto found = place.find({work, c, m});
        if (found == place.end()) refuse("lacks ", name(step), "; add it");
        if (before && found->second < place.at({before->work, c, m}))
          refuse("has ", name(step), " before ", name(*before), ", which it needs");
        before = step;
      }
    }
  }
}

// Stages at their steps. A step asks for the message it reads when it begins, waits for it, and before it
// sends its own waits for the one before on the same way to have been asked for: one is in flight.
class FromFile::Player {
 public:
  Player(const std::string& path, const std::vector<Line>& lines, const Pipeline& p)
      : path_(path), lines_(lines), pipeline_(p), at_(lines.size()) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < at_.size(); ++s) {
        while (advance(s)) moved = true;
      }
    }
    for (size_t s = 0; s < at_.size(); ++s) {
      if (!ended(s)) refuse_waiting(s);
    }
  }

 private:
  struct Messages {             // of a way: work and chunk of who reads them
    std::vector<int64_t> sent;  // microbatches, in order
    size_t asked = 0, taken = 0;
  };
  struct At {
    size_t step = 0;
    bool asked = false, taken = false;  // the message that the step reads
  };
  using Way = std::pair<Work, int64_t>;

  bool ended(size_t s) const { return at_[s].step == lines_[s].steps.size(); }
  Step step(size_t s) const {
    Step out = lines_[s].steps[at_[s].step];
    out.chunk = out.chunk * pipeline_.stages + static_cast<int64_t>(s);
    return out;
  }
  bool exists(int64_t chunk) const {
    return chunk >= 0 && chunk < pipeline_.stages * pipeline_.chunks;
  }
  static int64_t onward(const Step& s) { return s.work == Work::kForward ? 1 : -1; }
  static bool talks(const Step& s) { return s.work != Work::kWeight; }
  bool reads(const Step& s) const { return talks(s) && exists(s.chunk - onward(s)); }
  bool sends(const Step& s) const { return talks(s) && exists(s.chunk + onward(s)); }

  // One move of a stage; false where it has ended or waits.
  bool advance(size_t s) {
    if (ended(s)) return false;
    At& at = at_[s];
    const Step now = step(s);
    if (reads(now)) {
      Messages& in = ways_[{now.work, now.chunk}];
      if (!at.asked) {
        ++in.asked;
        at.asked = true;
        return true;
      }
      if (!at.taken) {
        if (in.taken == in.sent.size()) return false;
        if (in.sent[in.taken] != now.microbatch) refuse_order(s, now, in.sent[in.taken]);
        ++in.taken;
        at.taken = true;
      }
    }
    if (sends(now)) {
      Messages& out = ways_[{now.work, now.chunk + onward(now)}];
      if (out.asked < out.sent.size()) return false;
      out.sent.push_back(now.microbatch);
    }
    at = {at.step + 1, false, false};
    return true;
  }

  // The step of another stage that a waiting one waits for.
  Step wanted(size_t s) const {
    const Step now = step(s);
    if (reads(now) && !at_[s].taken) return {now.work, now.chunk - onward(now), now.microbatch};
    const int64_t to = now.chunk + onward(now);
    const Messages& out = ways_.at({now.work, to});
    return {now.work, to, out.sent[out.asked]};
  }

  size_t stage_of(const Step& s) const { return static_cast<size_t>(s.chunk % pipeline_.stages); }
  std::string place(size_t s) const { return sdk::text(path_, ":", lines_[s].number); }
  std::string name(Step s) const {
    s.chunk /= pipeline_.stages;
    return step_name(s, pipeline_);
  }

  [[noreturn]] void refuse_order(size_t s, const Step& now, int64_t comes) const {
    const Step from{now.work, now.chunk - onward(now), comes};
    throw sdk::usage_error(sdk::text(place(s), ": stage ", s, " runs ", name(now), " where ",
                                     name(from), " of stage ", stage_of(from), " (",
                                     place(stage_of(from)),
                                     ") arrives; give both lines one order of microbatches"));
  }

  // Whether a stage's step could stand before another of its steps.
  static bool may_precede(const Step& a, const Step& b) {
    if (a.chunk != b.chunk) return true;
    return a.work < b.work || (a.work > b.work && a.microbatch < b.microbatch);
  }

  // Following who waits for whom ends in a circle. Of two neighbours in it, the first waits for a step
  // that the second could do sooner.
  [[noreturn]] void refuse_waiting(size_t s) const {
    const auto next = [&](size_t stage) { return stage_of(wanted(stage)); };
    for (size_t i = 0; i < at_.size(); ++i) s = next(s);
    for (size_t i = 0; i < at_.size() && !may_precede(wanted(s), step(next(s))); ++i) s = next(s);
    const Step first = wanted(s);
    const size_t other = next(s);
    const Step second = wanted(other);
    throw sdk::usage_error(
        sdk::text(place(s), ": stage ", s, " waits in ", name(step(s)), " for ", name(first),
                  " of stage ", other, " (", place(other), "), which waits in ", name(step(other)),
                  " for ", name(second), " of stage ", stage_of(second), ", and so for ever; put ",
                  name(first), " before ", name(step(other)), " in line ", lines_[other].number));
  }

  const std::string& path_;
  const std::vector<Line>& lines_;
  const Pipeline& pipeline_;
  std::vector<At> at_;
  std::map<Way, Messages> ways_;
};

void FromFile::play(const Pipeline& p) const { Player(path_, stages_, p).run(); }

std::unique_ptr<Schedule> make_schedule(const std::string& name) {
  if (name == "gpipe") return std::make_unique<GPipe>();
  if (name == "1f1b") return std::make_unique<OneForwardOneBackward>();
  if (name == "interleaved") return std::make_unique<Interleaved>();
  if (name == "zb_h1") return std::make_unique<ZeroBubbleH1>();
  throw sdk::usage_error(sdk::text("[[strategy]] pp: schedule \"", name,
                                   "\" is none of gpipe, 1f1b, interleaved and zb_h1"));
}

}  // namespace capstan::pp
