// The tracker as a plugin.
#include <optional>

#include "plugins/tracker/jsonl/log_file.h"
#include "plugins/tracker/jsonl/record.h"
#include "sdk/tracker.h"

namespace capstan::jsonl {
namespace {

class Tracker {
 public:
  Tracker(const sdk::Host& host, const sdk::Options& options, const char* run_directory,
          int64_t resume_step)
      : host_(host), last_step_(resume_step) {
    const std::string name = options.get_string("file");
    // The ending keeps it apart from what else lies in a run directory.
    if (name.find('/') != std::string::npos || !name.ends_with(".jsonl")) {
      throw sdk::usage_error(sdk::text("file = ", sdk::quote(name),
                                       " is not a plain file name that ends in .jsonl; the ",
                                       "file lies in the run directory"));
    }
    path_ = sdk::text(run_directory, "/", name);
    refuse_used_log(path_);
    if (resume_step < 0) {
      set_aside_log(path_);
    } else {
      report(trim_log(path_, resume_step));
    }
    writer_.emplace(path_, static_cast<std::size_t>(options.get_int("queue")),
                    static_cast<std::uint64_t>(options.get_int("fsync_every")));
  }

  ~Tracker() {
    try {
      finish();
    } catch (const std::exception& error) {
      host_.log(sdk::LogLevel::kError, "jsonl", error.what());
    }
  }

  void metrics(const char* scope, int64_t step, std::span<const capstan_metric> metrics) {
    last_step_ = step;
    writer_->add(metrics_line(scope, step, metrics));
  }
  void event(const char* name, int64_t step, const char* text) {
    last_step_ = step;
    writer_->add(event_line(name, step, text == nullptr ? "" : text));
  }
  void flush() { writer_->flush(); }

 private:
  void report(const Trimmed& trimmed) const {
    if (trimmed.later > 0) {
      host_.log(
          sdk::LogLevel::kInfo, "jsonl",
          sdk::text("took ", trimmed.later, " records of later steps out of ", sdk::quote(path_)));
    }
    if (trimmed.unreadable > 0) {
      host_.log(sdk::LogLevel::kWarning, "jsonl",
                sdk::text("took ", trimmed.unreadable, " unreadable lines out of ",
                          sdk::quote(path_), ", as a crash leaves them"));
    }
  }

  // Drops belong in the log itself, or a gap would look like a run that logged nothing.
  void finish() {
    // The first flush makes room for the record of the drops; its failure is counted as lost lines.
    std::exception_ptr failure;
    try {
      writer_->flush();
    } catch (...) {
      failure = std::current_exception();
    }
    const WriterCounts counts = writer_->counts();
    if (counts.dropped + counts.lost > 0) {
      const std::string message = sdk::text(counts.dropped, " records found the queue full and ",
                                            counts.lost, " could not be written");
      host_.log(sdk::LogLevel::kWarning, "jsonl", message + " to " + sdk::quote(path_));
      writer_->add(event_line("records_dropped", last_step_, message));
      writer_->flush();
    }
    if (failure) std::rethrow_exception(failure);
  }

  sdk::Host host_;
  int64_t last_step_;
  std::string path_;
  std::optional<LogWriter> writer_;
};

constexpr capstan_option kOptions[] = {
    sdk::string_option("file", "\"metrics.jsonl\"",
                       "Name of the file in the run directory, ending in .jsonl."),
    sdk::int_option("queue", "4096",
                    "Records that may wait for the disk; more are dropped and counted.")
        .range(1, 1e7),
    sdk::int_option("fsync_every", "0",
                    "Records between flushes to the disk; 0: only at checkpoints and at the end.")
        .at_least(0),
};

}  // namespace
}  // namespace capstan::jsonl

CAPSTAN_PLUGIN_ENTRY("jsonl", "1.0.0", "Apache-2.0", "Metrics as lines of JSON.",
                     capstan::sdk::tracker_component<capstan::jsonl::Tracker>(
                         "jsonl", "1.0.0", "One JSON object a step in metrics.jsonl.",
                         capstan::jsonl::kOptions));
