// The file behind the tracker: starting, resuming, and writing without holding up the training
// step.
#ifndef CAPSTAN_PLUGINS_TRACKER_JSONL_LOG_FILE_H_
#define CAPSTAN_PLUGINS_TRACKER_JSONL_LOG_FILE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "sdk/file.h"

namespace capstan::jsonl {

// What resuming took out of a file.
struct Trimmed {
  std::uint64_t later = 0;       // records of steps above the resumed one
  std::uint64_t unreadable = 0;  // lines that are not records, a torn last line among them
};

// Keeps the records whose step is at most `resume_step`. The file is replaced as a whole
// (temporary, fsync, rename), or left alone when nothing has to go. A missing file is an empty one.
Trimmed trim_log(const std::string& path, std::int64_t resume_step);

// Throws where a LogWriter, of this process or another, has the file open.
void refuse_used_log(const std::string& path);

// Starts a new log: an existing file becomes <path>.old, in place of an earlier one.
void set_aside_log(const std::string& path);

struct WriterCounts {
  std::uint64_t dropped = 0;  // lines that found the queue full
  std::uint64_t lost = 0;     // lines that could not be written
};

// Appends lines from a bounded queue on its own thread. [one thread, but for the writer's own]
class LogWriter {
 public:
  // fsync_every: lines between flushes to the disk, 0: only at flush.
  LogWriter(const std::string& path, std::size_t queue_lines, std::uint64_t fsync_every);
  // Writes what is queued, without fsync.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Never waits for the disk: with a full queue the line is dropped and counted.
  void add(std::string line);

  // Waits until all that was added is on the disk; throws the first failure since the last flush.
  void flush();

  WriterCounts counts() const;

 private:
  void run();
  void write_batch(const std::string& batch, std::uint64_t lines);

  const std::size_t queue_lines_;
  const std::uint64_t fsync_every_;
  sdk::File file_;
  std::uint64_t size_ = 0;      // of whole lines; the writer's thread only
  std::uint64_t unsynced_ = 0;  // lines; the writer's thread only

  mutable std::mutex mutex_;
  std::condition_variable work_;  // to the writer: lines, a flush or the end
  std::condition_variable done_;  // from the writer: a flush is done
  std::deque<std::string> queue_;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  bool ending_ = false;
  WriterCounts counts_;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace capstan::jsonl

#endif  // CAPSTAN_PLUGINS_TRACKER_JSONL_LOG_FILE_H_
