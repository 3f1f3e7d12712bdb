#include "runtime/run/progress.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace capstan {

std::string DurationText(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  if (s >= 86400) return absl::StrFormat("%dd%02dh", s / 86400, s % 86400 / 3600);
  if (s >= 3600) return absl::StrFormat("%dh%02dm", s / 3600, s % 3600 / 60);
  if (s >= 60) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  return absl::StrFormat("%ds", s);
}

Progress::~Progress() {
  if (drawn_) std::fputs("\n", stdout);
  std::fflush(stdout);
}

void Progress::Step(const StepReport& r) {
  const bool last = r.step == r.steps;
  if (!terminal_ && r.step % every_ != 0 && r.step != 1 && !last) return;
  std::string text = absl::StrFormat("step %d/%d  loss %.4f  grad_norm %.3f  lr %.3g  %.0f tok/s",
                                     r.step, r.steps, r.loss, r.grad_norm, r.lr, r.tokens_per_s);
  if (r.mfu > 0) text += absl::StrFormat("  mfu %.1f%%", 100 * r.mfu);
  text += "  eta " + DurationText(r.eta_s);
  if (terminal_) {
    std::printf("\r\x1b[2K%s", text.c_str());
    drawn_ = true;
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void Progress::Line(const std::string& text) {
  if (drawn_) std::fputs("\r\x1b[2K", stdout);
  drawn_ = false;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace capstan
