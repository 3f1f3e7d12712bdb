#include "plugins/model/common/hf_config.h"

#include <cmath>

#include "sdk/error.h"

namespace capstan::models {
namespace {

// What every published config may carry that does not change what the network computes: provenance,
// special tokens, defaults of text generation, training-only settings of other programs.
constexpr const char* kWithoutEffect[] = {"_name_or_path",
                                          "architectures",
                                          "attn_implementation",
                                          "_attn_implementation",
                                          "auto_map",
                                          "bad_words_ids",
                                          "begin_suppress_tokens",
                                          "bos_token_id",
                                          "chunk_size_feed_forward",
                                          "decoder_start_token_id",
                                          "diversity_penalty",
                                          "do_sample",
                                          "dtype",
                                          "early_stopping",
                                          "encoder_no_repeat_ngram_size",
                                          "exponential_decay_length_penalty",
                                          "finetuning_task",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "gradient_checkpointing",
                                          "id2label",
                                          "initializer_range",
                                          "is_decoder",
                                          "keys_to_ignore_at_inference",
                                          "label2id",
                                          "length_penalty",
                                          "max_length",
                                          "min_length",
                                          "name_or_path",
                                          "no_repeat_ngram_size",
                                          "num_beam_groups",
                                          "num_beams",
                                          "num_labels",
                                          "num_return_sequences",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_past",
                                          "output_scores",
                                          "pad_token_id",
                                          "prefix",
                                          "problem_type",
                                          "remove_invalid_values",
                                          "repetition_penalty",
                                          "return_dict",
                                          "return_dict_in_generate",
                                          "sep_token_id",
                                          "suppress_tokens",
                                          "task_specific_params",
                                          "temperature",
                                          "tf_legacy_loss",
                                          "tie_encoder_decoder",
                                          "tokenizer_class",
                                          "top_k",
                                          "top_p",
                                          "torch_dtype",
                                          "torchscript",
                                          "transformers_version",
                                          "typical_p",
                                          "use_bfloat16",
                                          "use_cache"};

}  // namespace

HfConfig::HfConfig(const char* model_type, const sdk::Options& options, const std::string* text)
    : model_type_(model_type), options_(options), given_(text != nullptr) {
  if (!given_) return;
  document_ = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!document_.is_object()) throw sdk::data_error("config.json is not a JSON object");
  const Json* type = raw("model_type");
  if (type == nullptr || *type != model_type_) {
    throw sdk::usage_error(sdk::text(
        "config.json is of model_type ", type == nullptr ? "(none)" : type->dump(),
        ", but [model] plugin = \"", model_type_, "\"; choose the plugin that fits the weights"));
  }
  for (const char* key : kWithoutEffect) seen_.insert(key);
  require("is_encoder_decoder", false, "encoder-decoder models are not offered");
  require("add_cross_attention", false, "cross-attention is not offered");
  require("pruned_heads", Json::object(), "pruned heads are not offered");
}

const Json* HfConfig::raw(const char* key) {
  seen_.insert(key);
  const auto it = document_.find(key);
  return it == document_.end() || it->is_null() ? nullptr : &*it;
}

template <class T>
T HfConfig::agreed(const char* option, const char* key, T from_file, T from_option) const {
  if (options_.from_user(option) && from_option != from_file) {
    throw sdk::usage_error(sdk::text("[model] ", option, " = ", from_option, " contradicts ", key,
                                     " = ", from_file,
                                     " in config.json; remove the key or use other weights"));
  }
  return from_file;
}

int64_t HfConfig::integer(const char* option, const char* key, std::optional<int64_t> absent,
                          int64_t most) {
  const int64_t own = options_.get_int(option);
  if (!given_) return own;
  const Json* value = raw(key);
  if (value == nullptr) {
    if (!absent) throw sdk::data_error(sdk::text("config.json has no ", key));
    return own == 0 ? *absent : agreed(option, key, *absent, own);
  }
  if (!value->is_number_integer() || *value < 1 || *value > most) {
    throw sdk::data_error(
        sdk::text(key, " = ", value->dump(), " in config.json is not a size from 1 to ", most));
  }
  // An option of 0 leaves the size to be derived, so it contradicts nothing.
  return own == 0 ? value->get<int64_t>() : agreed(option, key, value->get<int64_t>(), own);
}

double HfConfig::number(const char* option, const char* key, std::optional<double> absent) {
  const double own = options_.get_float(option);
  if (!given_) return own;
  const Json* value = raw(key);
  if (value == nullptr) {
    if (!absent) throw sdk::data_error(sdk::text("config.json has no ", key));
    return agreed(option, key, *absent, own);
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    throw sdk::data_error(sdk::text(key, " = ", value->dump(), " in config.json is not a number"));
  }
  return agreed(option, key, value->get<double>(), own);
}

bool HfConfig::boolean(const char* option, const char* key, std::optional<bool> absent) {
  const bool own = options_.get_bool(option);
  if (!given_) return own;
  const Json* value = raw(key);
  if (value == nullptr) {
    if (!absent) throw sdk::data_error(sdk::text("config.json has no ", key));
    return agreed(option, key, *absent, own);
  }
  if (!value->is_boolean()) {
    throw sdk::data_error(
        sdk::text(key, " = ", value->dump(), " in config.json is not true or false"));
  }
  return agreed(option, key, value->get<bool>(), own);
}

double HfConfig::training_number(const char* option, const char* key, double absent) {
  const Json* value = given_ ? raw(key) : nullptr;
  if (!given_ || options_.from_user(option)) return options_.get_float(option);
  if (value == nullptr) return absent;
  if (!value->is_number()) {
    throw sdk::data_error(sdk::text(key, " = ", value->dump(), " in config.json is not a number"));
  }
  return value->get<double>();
}

int64_t HfConfig::eos_token() {
  const Json* value = given_ ? raw("eos_token_id") : nullptr;
  if (value == nullptr || options_.from_user("eos_token")) return options_.get_int("eos_token");
  const Json& first = value->is_array() && !value->empty() ? value->front() : *value;
  // The library compares an unsigned number with a signed one by its bits.
  const bool huge = first.is_number_unsigned() && first.get<uint64_t>() > uint64_t{kMostSize};
  if (!first.is_number_integer() || huge || first < -1) {
    throw sdk::data_error(
        sdk::text("eos_token_id = ", value->dump(), " in config.json is not a token"));
  }
  return first.get<int64_t>();
}

void HfConfig::require(const char* key, const Json& value, std::string_view remedy) {
  const Json* found = raw(key);
  if (found != nullptr && *found != value) {
    throw sdk::unsupported_error(
        sdk::text("config.json asks for ", key, " = ", found->dump(), "; ", remedy));
  }
}

void HfConfig::without_effect(std::initializer_list<const char*> keys) {
  for (const char* key : keys) seen_.insert(key);
}

void HfConfig::refuse_unknown() const {
  for (const auto& [key, value] : document_.items()) {
    if (value.is_null() || seen_.contains(key)) continue;
    throw sdk::unsupported_error(
        sdk::text("config.json has ", key, " = ", value.dump(), ", which the model plugin '",
                  model_type_, "' does not know; it may change the model, so it is refused"));
  }
}

}  // namespace capstan::models
