#include "runtime/run/pipeline_drawing.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "runtime/strings.h"

namespace capstan {
namespace {

constexpr double kWidth = 1200, kLeft = 70, kBar = 22, kGap = 6, kTitle = 26;

char Letter(const PipelineStep& step) {
  if (step.work == PipelineWork::kForward) return static_cast<char>('0' + step.microbatch % 10);
  if (step.work == PipelineWork::kBackward) return static_cast<char>('a' + step.microbatch % 26);
  return 'w';
}

const char* Colour(const PipelineStep& step) {
  if (step.work == PipelineWork::kForward) return step.chunk % 2 == 0 ? "#7aa6d8" : "#5b8cc4";
  if (step.work == PipelineWork::kBackward) return "#8fc98f";
  return "#e3c567";
}

std::string Rect(double x, double y, double w, double h, const char* fill,
                 const std::string& title) {
  return absl::StrFormat(
      "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\" stroke=\"#444\" "
      "stroke-width=\"0.4\"><title>%s</title></rect>\n",
      x, y, std::max(w, 0.3), h, fill, title);
}

double End(const TimelineRow& row) { return row.timeline.end() * row.unit_s; }

}  // namespace

std::string TimelineText(const PipelineTimeline& timeline, int columns) {
  const double end = timeline.end();
  std::string text;
  for (size_t s = 0; s < timeline.stages.size(); ++s) {
    std::string line(static_cast<size_t>(columns), '.');
    for (const PipelineInterval& i : timeline.stages[s]) {
      if (end <= 0) continue;
      const auto from = static_cast<int>(std::floor(i.start / end * columns + 0.5));
      const auto to = static_cast<int>(std::floor(i.end / end * columns + 0.5));
      for (int c = from; c < std::min(columns, std::max(to, from + 1)); ++c)
        line[static_cast<size_t>(c)] = Letter(i.step);
    }
    StrAppend(&text, absl::StrFormat("  stage %2d  ", static_cast<int>(s)), line, "\n");
  }
  return text;
}

std::string TimelineSvg(const std::vector<TimelineRow>& rows) {
  double longest = 0, height = 10;
  for (const TimelineRow& row : rows) {
    longest = std::max(longest, End(row));
    height += kTitle + static_cast<double>(row.timeline.stages.size()) * (kBar + kGap) + kGap;
  }
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<defs><pattern id=\"bubble\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
      "<rect width=\"6\" height=\"6\" fill=\"#eee\"/><path d=\"M0 6L6 0\" stroke=\"#bbb\"/>"
      "</pattern></defs>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth + kLeft + 20, height);
  double y = 10;
  for (const TimelineRow& row : rows) {
    svg += absl::StrFormat("<text x=\"4\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", y + 14,
                           row.title);
    y += kTitle;
    const double scale = longest > 0 ? kWidth * row.unit_s / longest : 0;
    for (size_t s = 0; s < row.timeline.stages.size(); ++s) {
      svg += absl::StrFormat("<text x=\"4\" y=\"%.1f\">stage %d</text>\n", y + 15,
                             static_cast<int>(s));
      const auto& intervals = row.timeline.stages[s];
      if (!intervals.empty()) {
        svg += Rect(kLeft, y, row.timeline.end() * scale, kBar, "url(#bubble)", "idle");
      }
      for (const PipelineInterval& i : intervals) {
        svg += Rect(kLeft + i.start * scale, y, (i.end - i.start) * scale, kBar, Colour(i.step),
                    absl::StrFormat("%s, chunk %d, %.4g ms", PipelineStepName(i.step), i.step.chunk,
                                    (i.end - i.start) * row.unit_s * 1e3));
      }
      y += kBar + kGap;
    }
    y += kGap;
  }
  return svg + "</svg>\n";
}

}  // namespace capstan
