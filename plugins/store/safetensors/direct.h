// Writes that go from memory to the disk without a copy in the page cache, beside the caller. A
// checkpoint is larger than what anyone reads again soon; a write call copies into pages that the kernel
// must first find and clear, and calls of several processes to one file take turns at that.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_DIRECT_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_DIRECT_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sdk/file.h"

namespace capstan::safetensors {

// A file that is open elsewhere, opened again for direct writes. Where its file system has none, the
// first open writes them through the page cache. Must outlive the writer it is given to.
class DirectFile {
 public:
  explicit DirectFile(const sdk::File& cached) : cached_(cached) {
    usable_ = file_.open_direct(cached.path());
  }
  bool usable() const { return usable_; }
  // Whole blocks from memory aligned to one. A failed write throws. [one thread]
  void write_blocks(const char* data, std::uint64_t size, std::uint64_t offset);

 private:
  const sdk::File& cached_;
  sdk::File file_;
  std::atomic<bool> usable_;
};

// Copies what it is given and writes it in a thread of its own, which starts with the first write.
// [one thread]
class DirectWriter {
 public:
  // Shorter writes gain nothing.
  static constexpr std::uint64_t kLeast = 1 << 20;

  DirectWriter() = default;
  ~DirectWriter() { stop(); }
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  // What write leaves to the caller at the two ends, in bytes: whole blocks alone can go directly.
  struct Left {
    std::uint64_t head = 0, tail = 0;
  };
  // Takes what it can of `size` bytes for `offset`; of a short one, or without direct writes, nothing:
  // `head` is all of it. Throws what went wrong with an earlier write.
  Left write(DirectFile& file, const char* data, std::uint64_t size, std::uint64_t offset);
  // Returns when all is written, or throws what went wrong.
  void finish();
  // Drops what is not yet written. The end of this writer.
  void stop() noexcept;

 private:
  static constexpr std::uint64_t kPiece = 8 << 20;
  static constexpr std::size_t kPieces = 3;  // one is filled while another is written

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Piece = std::unique_ptr<char, Free>;
  struct Job {
    DirectFile* file;
    Piece data;
    std::uint64_t size, offset;
  };

  bool start();
  Piece empty_piece();
  void run();
  void rethrow();

  std::mutex mutex_;  // of all below but thread_
  std::condition_variable changed_;
  std::vector<Piece> empty_;
  std::deque<Job> jobs_;
  bool writing_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_DIRECT_H_
