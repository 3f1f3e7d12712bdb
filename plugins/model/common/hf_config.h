// A model's settings from two sources: the options in TOML, and the config.json of published
// weights (Hugging Face form). With a config.json its values rule; an option the user set must
// agree with it. Every key of the file is either read, known to have no effect, or refused: nothing
// is ignored that could change the function a model computes.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_HF_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_HF_CONFIG_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "sdk/options.h"

namespace capstan::models {

using Json = nlohmann::ordered_json;

class HfConfig {
 public:
  // A bound that any size we can address keeps, so that products of two stay in 64 bits.
  static constexpr int64_t kMostSize = int64_t{1} << 31;
  static constexpr int64_t kMostLayers = 100000;

  // `text` is config.json or nullptr; `model_type` is what its key of that name must say.
  HfConfig(const char* model_type, const sdk::Options& options, const std::string* text);

  bool given() const { return given_; }
  const Json& document() const { return document_; }

  // The value of `option`, or of `key` in config.json. `absent` is what a missing or null key
  // means; without it such a config.json is refused.
  int64_t integer(const char* option, const char* key, std::optional<int64_t> absent = {},
                  int64_t most = kMostSize);
  double number(const char* option, const char* key, std::optional<double> absent = {});
  bool boolean(const char* option, const char* key, std::optional<bool> absent = {});

  // As `number`, but a setting of training and not of the architecture: the user's value wins.
  double training_number(const char* option, const char* key, double absent);

  // The token that ends a text: option eos_token, or eos_token_id, of which a list gives its first.
  int64_t eos_token();

  // A feature we offer in one form only: any other value is refused, saying `remedy`.
  void require(const char* key, const Json& value, std::string_view remedy);
  // The raw value of a key that the caller judges by itself; nullptr when missing or null.
  const Json* raw(const char* key);
  // Keys without effect on the function computed.
  void without_effect(std::initializer_list<const char*> keys);

  // Refuses the keys nobody asked for.
  void refuse_unknown() const;

 private:
  template <class T>
  T agreed(const char* option, const char* key, T from_file, T from_option) const;

  std::string model_type_;
  const sdk::Options& options_;
  bool given_ = false;
  Json document_ = Json::object();
  std::set<std::string, std::less<>> seen_;
};

}  // namespace capstan::models

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_HF_CONFIG_H_
