// The store as a plugin: turns the ABI's structs into the reader's and writer's own types.
#include <memory>

#include "plugins/store/safetensors/bundle.h"
#include "plugins/store/safetensors/reader.h"
#include "plugins/store/safetensors/writer.h"
#include "sdk/store.h"

namespace capstan::safetensors {
namespace {

Box slice_box(const capstan_store_slice& slice) {
  const auto dims = static_cast<std::size_t>(slice.ndim);
  return Box{{slice.start, slice.start + dims}, {slice.extent, slice.extent + dims}};
}

class Store {
 public:
  Store(const sdk::Host&, const sdk::Options& options)
      : options_{options.get_bool("fsync"), options.get_bool("direct")} {}

  class Writer {
   public:
    Writer(const char* path, const std::vector<DeclaredTensor>& tensors, WriterOptions options)
        : bundle_(path, tensors, options) {}
    void put(const capstan_store_slice& slice) {
      bundle_.put(slice.group, slice.name, slice_box(slice), slice.data);
    }
    void put_text(const char* name, std::string_view text) { bundle_.put_text(name, text); }
    void commit() { bundle_.commit(); }
    const std::string& ticket() { return bundle_.share(); }

    Writer(BundleWriter::Joined joined, const std::vector<DeclaredTensor>& tensors,
           WriterOptions options)
        : bundle_(std::move(joined), tensors, options) {}

   private:
    BundleWriter bundle_;
  };

  class Reader {
   public:
    explicit Reader(const char* path) : bundle_(path) {}
    size_t tensor_count() const noexcept { return bundle_.tensor_count(); }
    capstan_store_tensor tensor(size_t index) const {
      const TensorEntry& entry = bundle_.tensor(index);
      auto out = sdk::sized<capstan_store_tensor>();
      out.name = entry.name.c_str();
      out.group = bundle_.group(index).c_str();
      out.dtype = entry.dtype->code;
      out.ndim = static_cast<int32_t>(entry.shape.size());
      out.shape = entry.shape.data();
      return out;
    }
    void get(const capstan_store_slice& slice) const {
      bundle_.get(slice.group, slice.name, slice_box(slice), slice.data);
    }
    std::string_view get_text(const char* name) { return bundle_.text(name); }

   private:
    BundleReader bundle_;
  };

  std::unique_ptr<Writer> begin(const char* path, std::span<const capstan_store_tensor> tensors) {
    return std::make_unique<Writer>(path, declared(tensors), options_);
  }
  std::unique_ptr<Writer> join(const char* ticket, std::span<const capstan_store_tensor> tensors) {
    return std::make_unique<Writer>(BundleWriter::Joined{ticket}, declared(tensors), options_);
  }
  std::unique_ptr<Reader> open(const char* path) { return std::make_unique<Reader>(path); }
  std::vector<std::string> list(const char* directory) { return list_bundles(directory); }
  void remove(const char* path) { remove_bundle(path); }
  void clean(const char* directory) { clean_temporaries(directory); }

 private:
  static std::vector<DeclaredTensor> declared(std::span<const capstan_store_tensor> tensors) {
    std::vector<DeclaredTensor> out;
    out.reserve(tensors.size());
    for (const capstan_store_tensor& tensor : tensors) {
      out.push_back(
          {tensor.name, tensor.group, tensor.dtype, {tensor.shape, tensor.shape + tensor.ndim}});
    }
    return out;
  }

  WriterOptions options_;
};

constexpr capstan_option kOptions[] = {
    sdk::bool_option("fsync", "true",
                     "Flush a bundle to the disk before it becomes visible; false is faster, but a "
                     "power failure may lose it."),
    sdk::bool_option(
        "direct", "true",
        "Large writes go past the page cache, where the file system can; false keeps what "
        "was written in memory."),
};

}  // namespace
}  // namespace capstan::safetensors

CAPSTAN_PLUGIN_ENTRY(
    "safetensors", "1.0.0", "Apache-2.0", "Checkpoints and published weights as safetensors files.",
    capstan::sdk::store_component<capstan::safetensors::Store>(
        "safetensors", "1.0.0",
        "Bundles of safetensors files, atomic and durable; reads Hugging Face folders.",
        capstan::safetensors::kOptions));
