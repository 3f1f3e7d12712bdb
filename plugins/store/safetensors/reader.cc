#include "plugins/store/safetensors/reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "plugins/store/safetensors/bundle.h"
#include "sdk/error.h"

namespace capstan::safetensors {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTextBytes = 1 << 28;

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) throw sdk::system_error("list directory", directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_whole(const std::string& path) {
  const sdk::File file = sdk::File::open_to_read(path);
  const std::uint64_t size = file.size();
  if (size > kMaxTextBytes) {
    throw sdk::data_error(sdk::text("file ", sdk::quote(path), " has ", size,
                                    " bytes; a text file ", "of a bundle has at most ",
                                    kMaxTextBytes));
  }
  std::string content(size, '\0');
  file.read(content.data(), size, 0);
  return content;
}

// Shard file -> the tensors it holds, from the index of a sharded model.
std::map<std::string, std::unordered_set<std::string>> read_index(const std::string& path) {
  const std::string content = read_whole(path);
  const nlohmann::json index = nlohmann::json::parse(content, nullptr, false);
  const std::string at = sdk::text("file ", sdk::quote(path), ": ");
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw sdk::data_error(at + "there is no weight_map object; fetch the file again");
  }
  std::map<std::string, std::unordered_set<std::string>> shards;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (!ends_with(name, kSuffix) || name.find('/') != std::string::npos || name.front() == '.') {
      throw sdk::data_error(
          sdk::text(at, "weight_map gives tensor ", sdk::quote(tensor), " ",
                    shard.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                    ", which is not the name of a .safetensors file beside it"));
    }
    shards[name].insert(tensor);
  }
  return shards;
}

}  // namespace

BundleReader::BundleReader(const std::string& path) : path_(path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) throw sdk::system_error("open", path, errno);
  is_directory_ = S_ISDIR(status.st_mode);
  if (is_directory_) {
    open_directory();
  } else {
    add_file(path, kModelGroup, nullptr);
  }
}

void BundleReader::open_directory() {
  if (sdk::base_name(path_).rfind(sdk::kTemporaryPrefix, 0) == 0) {
    throw sdk::data_error(sdk::text(
        sdk::quote(path_), " is the temporary of an unfinished bundle; ", "open a finished one"));
  }
  const std::vector<std::string> names = names_in(path_);
  const auto has = [&](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  if (has(kMarker)) {
    for (const std::string& name : names) {
      if (!ends_with(name, kSuffix)) continue;
      const std::string group = name.substr(0, name.size() - std::strlen(kSuffix));
      add_file(path_ + "/" + name, group, nullptr);
    }
  } else if (const std::string whole = std::string(kModelGroup) + kSuffix; has(whole)) {
    add_file(path_ + "/" + whole, kModelGroup, nullptr);
  } else if (has(kIndex)) {
    open_sharded();
  } else {
    refuse_folder(names);
  }
}

void BundleReader::open_sharded() {
  const std::string index = path_ + "/" + kIndex;
  for (const auto& [shard, tensors] : read_index(index)) {
    const std::string path = path_ + "/" + shard;
    struct stat status;
    if (::stat(path.c_str(), &status) != 0) {
      throw sdk::data_error(sdk::text("file ", sdk::quote(index), " names the shard ",
                                      sdk::quote(shard), ", which is not there; fetch it too"));
    }
    add_file(path, kModelGroup, &tensors);
    std::size_t found = 0;
    for (const TensorEntry& entry : files_.back().header.tensors)
      found += tensors.count(entry.name);
    if (found == tensors.size()) continue;
    std::unordered_set<std::string> missing = tensors;
    for (const TensorEntry& entry : files_.back().header.tensors) missing.erase(entry.name);
    throw sdk::data_error(sdk::text(
        "file ", sdk::quote(index), " places tensor ",
        sdk::quote(*std::min_element(missing.begin(), missing.end())), " in ", sdk::quote(shard),
        ", which does not hold it; fetch the index and the shards from one revision"));
  }
}

void BundleReader::refuse_folder(const std::vector<std::string>& names) const {
  std::string message = sdk::text("folder ", sdk::quote(path_), " has no ", kModelGroup, kSuffix,
                                  ", ", kIndex, " or ", kMarker);
  for (const std::string& name : names) {
    if (ends_with(name, kSuffix)) {
      throw sdk::data_error(
          sdk::text(message, "; to read ", sdk::quote(name), ", give its own path"));
    }
  }
  for (const std::string& name : names) {
    if (ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth")) {
      throw sdk::data_error(sdk::text(message, "; convert ", sdk::quote(name),
                                      " to safetensors first (it holds pickled code)"));
    }
  }
  throw sdk::data_error(message + "; check the path");
}

void BundleReader::add_file(const std::string& path, const std::string& group,
                            const std::unordered_set<std::string>* only) {
  DataFile data{group, sdk::File::open_to_read(path), {}};
  const std::uint64_t size = data.file.size();
  std::string first(std::min(size, kLengthBytes), '\0');
  data.file.read(first.data(), first.size(), 0);
  std::string json(header_length(first, size, path), '\0');
  data.file.read(json.data(), json.size(), kLengthBytes);
  data.header = parse_header(json, size, path);
  for (std::size_t e = 0; e < data.header.tensors.size(); ++e) {
    const std::string& name = data.header.tensors[e].name;
    if (only != nullptr && only->count(name) == 0) continue;
    index_.emplace(group + '\0' + name, tensors_.size());
    tensors_.push_back(TensorRef{files_.size(), e});
  }
  files_.push_back(std::move(data));
}

const TensorEntry& BundleReader::tensor(std::size_t index) const {
  if (index >= tensors_.size()) {
    throw sdk::bug_error(sdk::text("tensor ", index, " of ", sdk::quote(path_),
                                   " was asked for; it has ", tensors_.size()));
  }
  return files_[tensors_[index].file].header.tensors[tensors_[index].entry];
}

void BundleReader::get(const std::string& group, const std::string& name, const Box& box,
                       void* data) const {
  const auto found = index_.find(group + '\0' + name);
  if (found == index_.end()) {
    throw sdk::data_error(sdk::text(sdk::quote(path_), " has no tensor ", sdk::quote(name),
                                    " in group ", sdk::quote(group),
                                    "; check that it belongs to this model"));
  }
  const TensorRef& ref = tensors_[found->second];
  const DataFile& file = files_[ref.file];
  const TensorEntry& entry = file.header.tensors[ref.entry];
  if (const std::string problem = box_problem(entry.shape, box); !problem.empty()) {
    throw sdk::data_error(sdk::text(
        "a slice of tensor ", sdk::quote(name), " in ", sdk::quote(file.file.path()), ", of shape ",
        shape_text(entry.shape), ", ", problem, "; the file and the model do not fit together"));
  }
  const Runs runs = box_runs(entry.shape, box, entry.dtype->size);
  gather(file, file.header.data_start + entry.begin, runs, static_cast<char*>(data));
}

void BundleReader::gather(const DataFile& file, std::uint64_t base, const Runs& runs,
                          char* data) const {
  RunCursor cursor(runs);
  if (!use_windows(runs)) {
    for (; !cursor.done(); cursor.next()) {
      file.file.read(data + cursor.slice_offset(), runs.run_bytes, base + cursor.run_offset());
    }
    return;
  }
  std::vector<char> window(std::min(kWindow, runs.span));
  while (!cursor.done()) {
    const std::uint64_t begin = cursor.run_offset();
    const std::uint64_t bytes = std::min(kWindow, runs.first + runs.span - begin);
    file.file.read(window.data(), bytes, base + begin);
    for (; !cursor.done() && cursor.run_offset() + runs.run_bytes <= begin + bytes; cursor.next()) {
      std::memcpy(data + cursor.slice_offset(), window.data() + (cursor.run_offset() - begin),
                  runs.run_bytes);
    }
  }
}

std::string_view BundleReader::text(const std::string& name) {
  const auto found = texts_.find(name);
  if (found != texts_.end()) return found->second;
  check_file_name("text file", name);
  const std::string path = path_ + "/" + name;
  struct stat status;
  if (!is_directory_ || ::stat(path.c_str(), &status) != 0) {
    throw sdk::data_error(sdk::text(sdk::quote(path_), " has no text file ", sdk::quote(name),
                                    is_directory_ ? "" : ", being a single file"));
  }
  return texts_.emplace(name, read_whole(path)).first->second;
}

}  // namespace capstan::safetensors
