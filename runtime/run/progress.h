// What a person sees of a run: one line redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace capstan {

struct StepReport {
  int64_t step = 0, steps = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_s = 0;
  double mfu = 0;  // share of the measured matrix-product rate, 0: unknown
  double eta_s = 0;
};

class Progress {
 public:
  // every: steps between plain lines.
  Progress(bool terminal, int64_t every) : terminal_(terminal), every_(every) {}
  ~Progress();
  void Step(const StepReport& report);
  void Line(const std::string& text);  // a message between steps

 private:
  bool terminal_;
  int64_t every_;
  bool drawn_ = false;
};

std::string DurationText(double seconds);  // "1h02m", "3m20s", "12s"

}  // namespace capstan
