// Writes one bundle: everything is laid out and paid for before the first byte, and nothing is
// visible at the final place until commit.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_WRITER_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plugins/store/safetensors/direct.h"
#include "plugins/store/safetensors/header.h"
#include "plugins/store/safetensors/slice.h"
#include "sdk/file.h"

namespace capstan::safetensors {

struct DeclaredTensor {
  std::string name;
  std::string group;
  capstan_dtype dtype;
  std::vector<std::int64_t> shape;
};

struct WriterOptions {
  bool fsync = true;   // false: a power failure may lose the bundle
  bool direct = true;  // large writes go past the page cache, where the file system can
};

// A stretch of a file, mapped. [one thread]
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { clear(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // Where byte `begin` of the file is, mapped as far as `end`; the mapping before is given up unless it
  // is the same. nullptr where the file cannot be mapped.
  char* at(const sdk::File& file, std::uint64_t begin, std::uint64_t end);
  void clear();

 private:
  void* memory_ = nullptr;
  int fd_ = -1;
  std::uint64_t begin_ = 0, end_ = 0;  // bytes of the file asked for
  std::uint64_t before_ = 0;           // mapped bytes before begin_: mappings begin with a page
};

// [one thread per writer]
class BundleWriter {
 public:
  // Refuses a place that is taken, tensors that cannot be stored, and a disk too full for them;
  // then creates the temporary with every header written and every byte reserved.
  BundleWriter(std::string path, const std::vector<DeclaredTensor>& tensors, WriterOptions options);
  // Takes part in a bundle that another process has begun and shared. Its commit ends its part.
  struct Joined {
    std::string ticket;  // from share()
  };
  BundleWriter(Joined joined, const std::vector<DeclaredTensor>& tensors, WriterOptions options);
  // Without commit: removes the temporary, unless another process began it.
  ~BundleWriter();
  BundleWriter(const BundleWriter&) = delete;
  BundleWriter& operator=(const BundleWriter&) = delete;

  // `data` is the dense row-major box. Boxes of one tensor may come in any order but may not
  // overlap; the same box again overwrites.
  void put(const std::string& group, const std::string& name, const Box& box, const void* data);
  void put_text(const std::string& name, std::string_view text);

  // Refuses when a tensor lacks elements. After a failure nothing is visible at the final place.
  void commit();

  // Lets other processes join, before the first put: what they write is not counted here, so a
  // commit no longer checks that nothing is missing. The ticket is the temporary's place.
  const std::string& share();

 private:
  struct GroupFile {
    std::string group;
    Header header;
    std::string header_bytes;
    sdk::File file;
    std::unique_ptr<DirectFile> direct;  // none: all writes go through the page cache
    std::uint64_t not_started = 0;       // bytes written since the last hint to start writing back
    bool takes_mappings = false;
  };
  struct Target {
    std::size_t file = 0;
    std::size_t entry = 0;     // in the file's header
    std::vector<Box> written;  // disjoint
    std::uint64_t elements = 0;
    std::uint64_t elements_written = 0;
    std::vector<char> staged;  // the whole tensor, while its slices are still coming
  };

  // A short write that waits until the direct ones are done: calls to one file take turns.
  struct Postponed {
    GroupFile* group;
    std::uint64_t offset, size;
  };

  void lay_out(const std::vector<DeclaredTensor>& tensors);
  void check_space() const;
  void create_temporary();
  void create_files();
  void open_files();
  void settle_files();
  void remove_temporary() noexcept;
  bool record(Target& target, const TensorEntry& entry, const Box& box);
  bool stage(Target& target, const TensorEntry& entry, const Runs& runs);
  void write_cached(GroupFile& group, const char* data, std::uint64_t size, std::uint64_t offset);
  void write_postponed();
  void write_run(GroupFile& group, const char* data, std::uint64_t size, std::uint64_t offset);
  bool scatter_mapped(GroupFile& group, const TensorEntry& entry, const Runs& runs,
                      const char* data);
  void written(GroupFile& group, std::uint64_t size);  // keeps the disk busy
  void scatter(GroupFile& group, const TensorEntry& entry, const Runs& runs, const char* data);
  void check_complete() const;
  static std::string key(const std::string& group, const std::string& name) {
    return group + '\0' + name;
  }

  std::string path_;
  std::string parent_;
  std::string temporary_;
  WriterOptions options_;
  bool shared_ = false;  // other processes write parts of the bundle
  bool joined_ = false;  // another process began it
  int lock_fd_ = -1;
  std::vector<GroupFile> files_;
  std::vector<Target> targets_;
  std::unordered_map<std::string, std::size_t> index_;  // key -> targets_
  std::unordered_set<std::string> texts_;
  std::vector<char> window_;
  std::vector<char> spare_;  // a staging buffer for reuse: first touch costs more than copying
  std::uint64_t staged_bytes_ = 0;  // of all targets
  std::vector<Postponed> postponed_;
  std::vector<char> postponed_bytes_;  // of all of them, one behind the other
  Mapping mapping_;
  DirectWriter direct_;  // ends before the files it writes to
};

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_WRITER_H_
