// Reads a bundle, a Hugging Face folder (whole or sharded) or a single .safetensors file.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_READER_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_READER_H_

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plugins/store/safetensors/header.h"
#include "plugins/store/safetensors/slice.h"
#include "sdk/file.h"

namespace capstan::safetensors {

class BundleReader {
 public:
  // Checks every header wholly: once constructed, only the disk itself can make `get` fail.
  explicit BundleReader(const std::string& path);

  std::size_t tensor_count() const { return tensors_.size(); }
  // By group, then by place in the file. Valid while the reader lives.
  const TensorEntry& tensor(std::size_t index) const;
  const std::string& group(std::size_t index) const { return files_[tensors_[index].file].group; }

  // Fills `data` with the dense row-major box, in the tensor's own dtype. [any thread]
  void get(const std::string& group, const std::string& name, const Box& box, void* data) const;

  // The content of a text file, kept until the reader dies. [one thread]
  std::string_view text(const std::string& name);

 private:
  struct DataFile {
    std::string group;
    sdk::File file;
    Header header;
  };
  struct TensorRef {
    std::size_t file;
    std::size_t entry;
  };

  void open_directory();
  void open_sharded();
  // Takes every tensor of the file, or only the named ones.
  void add_file(const std::string& path, const std::string& group,
                const std::unordered_set<std::string>* only);
  [[noreturn]] void refuse_folder(const std::vector<std::string>& names) const;
  void gather(const DataFile& file, std::uint64_t base, const Runs& runs, char* data) const;

  std::string path_;
  bool is_directory_ = false;
  std::vector<DataFile> files_;
  std::vector<TensorRef> tensors_;
  std::unordered_map<std::string, std::size_t> index_;  // group '\0' name -> tensors_
  std::map<std::string, std::string> texts_;
};

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_READER_H_
