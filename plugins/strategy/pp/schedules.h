// Pipeline schedules: what one stage runs, in order. Each is a small type that yields the list; none
// knows of Programs.
#ifndef CAPSTAN_PLUGINS_STRATEGY_PP_SCHEDULES_H_
#define CAPSTAN_PLUGINS_STRATEGY_PP_SCHEDULES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::pp {

enum class Work { kForward, kBackward, kWeight };

// One segment for one microbatch. `chunk` is global: chunk c lies on stage c % stages.
struct Step {
  Work work = Work::kForward;
  int64_t chunk = 0;
  int64_t microbatch = 0;
  friend bool operator==(const Step&, const Step&) = default;
};

struct Pipeline {
  int64_t stages = 1;
  int64_t chunks = 1;  // of a stage
  int64_t microbatches = 1;
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  // Throws usage errors for sizes it cannot do, with the remedy.
  virtual std::vector<Step> steps(const Pipeline& pipeline, int64_t stage) const = 0;
  // The backward pass is split: weight gradients are steps of their own.
  virtual bool splits_backward() const { return false; }
};

// Huang et al. 2019: all forward passes, then all backward passes. Every microbatch is kept. One chunk a
// stage: with more, a stage would send microbatches that its neighbour, still sending back, cannot take.
class GPipe final : public Schedule {
 public:
  std::vector<Step> steps(const Pipeline& pipeline, int64_t stage) const override;
};

// Narayanan et al. 2021 (PipeDream-flush): a backward pass as early as it can be, so that stage s keeps
// stages - s microbatches at most.
class OneForwardOneBackward final : public Schedule {
 public:
  std::vector<Step> steps(const Pipeline& pipeline, int64_t stage) const override;
};

// Narayanan et al. 2021, section 2.2: several chunks a stage, which divide the bubble by their number.
class Interleaved final : public Schedule {
 public:
  std::vector<Step> steps(const Pipeline& pipeline, int64_t stage) const override;
};

// Qi et al. 2023, ZB-H1: 1F1B whose weight gradients are put off, by as many microbatches as the stage
// has stages before it, into what would be the bubble; every stage keeps as much as the first with 1F1B.
class ZeroBubbleH1 final : public Schedule {
 public:
  std::vector<Step> steps(const Pipeline& pipeline, int64_t stage) const override;
  bool splits_backward() const override { return true; }
};

// Read from a file: a line a stage, in order, of steps F<microbatch>, B<microbatch> and W<microbatch>,
// with .<chunk> of the stage where it has several: "F0 F1 B0 F2 B1 ...". # starts a comment. Words that
// are no steps are refused when the file is read, steps that are wrong and stages that would wait for each
// other when the steps of any stage are asked for, all with the line.
class FromFile final : public Schedule {
 public:
  explicit FromFile(const std::string& path);
  std::vector<Step> steps(const Pipeline& pipeline, int64_t stage) const override;
  bool splits_backward() const override { return splits_; }

 private:
  struct Line {
    int64_t number = 0;
    std::vector<Step> steps;  // chunks local
  };

  class Player;

  void read_line(const std::string& text, int64_t number);
  void check(const Pipeline& pipeline, int64_t stage, const Line& line) const;
  // All lines together, to their end.
  void play(const Pipeline& pipeline) const;

  std::string path_;
  std::vector<Line> stages_;
  bool splits_ = false;
};

// "gpipe", "1f1b", "interleaved" or "zb_h1"; throws a usage error for another name.
std::unique_ptr<Schedule> make_schedule(const std::string& name);

}  // namespace capstan::pp

#endif  // CAPSTAN_PLUGINS_STRATEGY_PP_SCHEDULES_H_
