// A pipeline's timeline drawn as text and as SVG.
#pragma once

#include <string>
#include <vector>

#include "runtime/run/pipeline_times.h"

namespace capstan {

// A line a stage, `columns` wide for the longest: forward passes as the last digit of their microbatch,
// backward passes as a letter (a for microbatch 0), weight gradients as w, idle time as dots.
std::string TimelineText(const PipelineTimeline& timeline, int columns);

struct TimelineRow {
  std::string title;
  PipelineTimeline timeline;
  double unit_s = 1;  // of its times
};

// One drawing under another on a common scale of seconds; idle time between a stage's first and last
// step is shaded. A whole SVG file.
std::string TimelineSvg(const std::vector<TimelineRow>& rows);

}  // namespace capstan
