// The tokenizer without a vocabulary file: an id is a byte. It needs no state between pieces, so
// any text, in any language or none, goes through it and comes back exactly.
#include <vector>

#include "sdk/tokenizer.h"

namespace capstan::bytes {
namespace {

constexpr int64_t kVocabulary = 256;

class Bytes {
 public:
  Bytes(const sdk::Host&, const sdk::Options&) {}

  const char* name() const noexcept { return "bytes"; }
  uint64_t fingerprint() const noexcept { return 0x6279746573000001u; }  // "bytes", revision 1
  int64_t vocabulary() const noexcept { return kVocabulary; }
  int64_t end_of_text() const noexcept { return -1; }

  class Encoder {
   public:
    explicit Encoder(const Bytes&) {}
    std::span<const uint32_t> encode(std::string_view text, bool) {
      ids_.resize(text.size());
      for (size_t i = 0; i < text.size(); ++i) ids_[i] = static_cast<unsigned char>(text[i]);
      return ids_;
    }

   private:
    std::vector<uint32_t> ids_;
  };

  std::string decode(std::span<const uint32_t> ids) const {
    std::string text;
    text.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= kVocabulary) {
        throw sdk::data_error(sdk::text("id ", ids[i], " at position ", i,
                                        " is not a byte (0 to 255); the ids come from another "
                                        "tokenizer, or the model's vocabulary is not 256"));
      }
      text += static_cast<char>(ids[i]);
    }
    return text;
  }
};

}  // namespace
}  // namespace capstan::bytes

CAPSTAN_PLUGIN_ENTRY("bytes", "1.0.0", "Apache-2.0", "Bytes as tokens.",
                     capstan::sdk::tokenizer_component<capstan::bytes::Bytes>(
                         "bytes", "1.0.0", "An id is the value of a byte; vocabulary 256."));
