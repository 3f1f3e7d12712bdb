// Kind "tokenizer": write a class with an Encoder, get a vtable.
//
//   class MyTokenizer {
//    public:
//     MyTokenizer(const sdk::Host&, const sdk::Options&);
//     const char* name() const noexcept;          // at most 127 bytes
//     uint64_t fingerprint() const noexcept;      // not 0
//     int64_t vocabulary() const noexcept;
//     int64_t end_of_text() const noexcept;       // -1: none
//     struct Encoder { explicit Encoder(const MyTokenizer&);
//                      // The ids live until the next call.
//                      std::span<const uint32_t> encode(std::string_view text, bool last); };
//     std::string decode(std::span<const uint32_t> ids) const;    // any thread
//   };
#ifndef CAPSTAN_SDK_TOKENIZER_H_
#define CAPSTAN_SDK_TOKENIZER_H_

#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "plugin_api/tokenizer.h"
#include "sdk/plugin.h"

namespace capstan::sdk {
namespace internal {

template <class T>
struct TokenizerThunks {
  using Encoder = typename T::Encoder;

  static const char* name(void* self) noexcept {
    static_assert(noexcept(component<T>(self).name()), "name() must be noexcept");
    return component<T>(self).name();
  }
  static uint64_t fingerprint(void* self) noexcept {
    static_assert(noexcept(component<T>(self).fingerprint()), "fingerprint() must be noexcept");
    return component<T>(self).fingerprint();
  }
  static int64_t vocabulary(void* self) noexcept {
    static_assert(noexcept(component<T>(self).vocabulary()), "vocabulary() must be noexcept");
    return component<T>(self).vocabulary();
  }
  static int64_t end_of_text(void* self) noexcept {
    static_assert(noexcept(component<T>(self).end_of_text()), "end_of_text() must be noexcept");
    return component<T>(self).end_of_text();
  }
  static capstan_status* encoder_create(void* self, void** encoder) noexcept {
    return guard([&] { *encoder = new Encoder(std::as_const(component<T>(self))); });
  }
  static void encoder_destroy(void*, void* encoder) noexcept {
    delete static_cast<Encoder*>(encoder);
  }
  static capstan_status* encode(void*, void* encoder, const char* text, size_t size, int32_t last,
                                const uint32_t** ids, size_t* count) noexcept {
    return guard([&] {
      const std::span<const uint32_t> made =
          static_cast<Encoder*>(encoder)->encode(std::string_view(text, size), last != 0);
      *ids = made.data();
      *count = made.size();
    });
  }
  static capstan_status* decode(void* self, const uint32_t* ids, size_t count, char* text,
                                size_t capacity, size_t* size) noexcept {
    return guard([&] {
      const std::string made = component<T>(self).decode(std::span<const uint32_t>(ids, count));
      const size_t copied = made.size() < capacity ? made.size() : capacity;
      if (copied > 0) std::memcpy(text, made.data(), copied);
      *size = made.size();
    });
  }

  static constexpr capstan_tokenizer_v1 vtable() {
    auto v = sized<capstan_tokenizer_v1>();
    v.create = &create_with_options<T>;
    v.destroy = &destroy<T>;
    v.name = &name;
    v.fingerprint = &fingerprint;
    v.vocabulary = &vocabulary;
    v.end_of_text = &end_of_text;
    v.encoder_create = &encoder_create;
    v.encoder_destroy = &encoder_destroy;
    v.encode = &encode;
    v.decode = &decode;
    return v;
  }
};
template <class T>
inline constexpr capstan_tokenizer_v1 kTokenizerVtable = TokenizerThunks<T>::vtable();

}  // namespace internal

template <class T>
constexpr capstan_component tokenizer_component(const char* id, const char* version,
                                                const char* doc,
                                                std::span<const capstan_option> options = {}) {
  return internal::make_component("tokenizer", CAPSTAN_TOKENIZER_INTERFACE, id, version, doc,
                                  options, &internal::kTokenizerVtable<T>);
}

}  // namespace capstan::sdk

#endif  // CAPSTAN_SDK_TOKENIZER_H_
