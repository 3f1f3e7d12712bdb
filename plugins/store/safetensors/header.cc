#include "plugins/store/safetensors/header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "plugins/store/safetensors/slice.h"
#include "sdk/error.h"
#include "sdk/file.h"

namespace capstan::safetensors {
namespace {

using sdk::quote;
using Json = nlohmann::json;

constexpr const char* kRewrite =
    "; the file is damaged or was written wrongly: fetch or save it again";

// One tensor's description, or the metadata, is all the nesting a header has, so the parser is a
// state machine over SAX events: no recursion, no DOM, nothing kept that is not asked for.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(Header* header, const std::string& file) : header_(header), file_(file) {}

  bool null() override { return refuse_value("null"); }
  bool boolean(bool value) override { return refuse_value(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return refuse_value(std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override { return refuse_value(text); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return refuse_value("binary"); }
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override;

 private:
  enum class State {
    kStart,     // before the outermost object
    kTop,       // a tensor's name or __metadata__ comes next
    kMetadata,  // inside __metadata__
    kTensor,    // inside a tensor's description
    kDtype,     // its value comes next
    kShape,     // an array comes next, or its elements
    kOffsets,   // the same
    kDone,
  };

  std::string where() const;
  bool refuse_value(const std::string& value);
  [[noreturn]] void refuse(const std::string& what) const;
  void tensor_key(const std::string& name);

  Header* header_;
  const std::string& file_;
  State state_ = State::kStart;
  bool in_array_ = false;
  bool expect_object_ = false;  // a key was read in kTop
  TensorEntry entry_;
  std::string metadata_key_;
  bool have_metadata_ = false;
  bool have_dtype_ = false, have_shape_ = false, have_offsets_ = false;
  std::vector<std::uint64_t> offsets_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_names_;
};

std::string HeaderReader::where() const {
  std::string text = "file " + quote(file_) + ": ";
  switch (state_) {
    case State::kMetadata:
      return text + "__metadata__ " + quote(metadata_key_);
    case State::kTensor:
      return text + "tensor " + quote(entry_.name);
    case State::kDtype:
      return text + "tensor " + quote(entry_.name) + ": dtype";
    case State::kShape:
      return text + "tensor " + quote(entry_.name) + ": shape";
    case State::kOffsets:
      return text + "tensor " + quote(entry_.name) + ": data_offsets";
    default:
      return text + "the header";
  }
}

void HeaderReader::refuse(const std::string& what) const {
  throw sdk::data_error(where() + " " + what + kRewrite);
}

bool HeaderReader::refuse_value(const std::string& value) {
  const std::string shown = quote(value);
  switch (state_) {
    case State::kStart:
      refuse("is " + shown + " where an object of tensors should be");
    case State::kTop:
      refuse("gives " + shown + " where a tensor's description should be");
    case State::kMetadata:
      refuse("is " + shown + ", which is not a string");
    case State::kDtype:
      refuse("is " + shown + ", which is not a string");
    case State::kShape:
    case State::kOffsets:
      refuse("holds " + shown + ", which is not a non-negative integer");
    default:
      refuse("has the unexpected value " + shown);
  }
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (!in_array_) return refuse_value(std::to_string(value));
  if (state_ == State::kShape) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse("holds " + std::to_string(value) + ", which is above 2^63 - 1");
    }
    if (entry_.shape.size() == kMaxDims) {
      refuse("has more than " + std::to_string(kMaxDims) + " dims");
    }
    entry_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (offsets_.size() == 2) refuse("holds more than two numbers");
  offsets_.push_back(value);
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (state_ == State::kMetadata) {
    header_->metadata.emplace_back(metadata_key_, value);
    return true;
  }
  if (state_ != State::kDtype) return refuse_value(value);
  entry_.dtype = find_dtype(value);
  if (entry_.dtype == nullptr) {
    throw sdk::data_error(where() + " is " + quote(value) + ", which is not one of " +
                          known_dtypes() + "; convert the file to one of these");
  }
  state_ = State::kTensor;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (state_ == State::kStart) {
    state_ = State::kTop;
    return true;
  }
  if (state_ != State::kTop || !expect_object_) return refuse_value("{");
  expect_object_ = false;
  if (entry_.name == "__metadata__") {
    if (have_metadata_) refuse("holds __metadata__ twice");
    have_metadata_ = true;
    state_ = State::kMetadata;
    return true;
  }
  if (!names_.insert(entry_.name).second) {
    state_ = State::kTensor;
    refuse("is described twice");
  }
  have_dtype_ = have_shape_ = have_offsets_ = false;
  offsets_.clear();
  state_ = State::kTensor;
  return true;
}

bool HeaderReader::key(string_t& name) {
  if (state_ == State::kTop) {
    entry_ = TensorEntry{};
    entry_.name = name;
    expect_object_ = true;
  } else if (state_ == State::kMetadata) {
    metadata_key_ = name;
    if (!metadata_names_.insert(name).second) refuse("is given twice");
  } else {
    tensor_key(name);
  }
  return true;
}

void HeaderReader::tensor_key(const std::string& name) {
  bool* seen = name == "dtype"          ? &have_dtype_
               : name == "shape"        ? &have_shape_
               : name == "data_offsets" ? &have_offsets_
                                        : nullptr;
  if (seen == nullptr) refuse("has the unknown key " + quote(name));
  if (*seen) refuse("has the key " + quote(name) + " twice");
  *seen = true;
  state_ = seen == &have_dtype_   ? State::kDtype
           : seen == &have_shape_ ? State::kShape
                                  : State::kOffsets;
}

bool HeaderReader::end_object() {
  if (state_ == State::kTop) {
    state_ = State::kDone;
    return true;
  }
  if (state_ == State::kMetadata) {
    state_ = State::kTop;
    return true;
  }
  if (!have_dtype_ || !have_shape_ || !have_offsets_) {
    refuse(std::string("has no ") + (!have_dtype_   ? "dtype"
                                     : !have_shape_ ? "shape"
                                                    : "data_offsets"));
  }
  entry_.begin = offsets_[0];
  entry_.end = offsets_[1];
  header_->tensors.push_back(std::move(entry_));
  entry_ = TensorEntry{};
  state_ = State::kTop;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (in_array_ || (state_ != State::kShape && state_ != State::kOffsets)) return refuse_value("[");
  in_array_ = true;
  return true;
}

bool HeaderReader::end_array() {
  if (state_ == State::kOffsets && offsets_.size() != 2) refuse("must hold two numbers");
  in_array_ = false;
  state_ = State::kTensor;
  return true;
}

bool HeaderReader::parse_error(std::size_t position, const std::string&,
                               const nlohmann::detail::exception&) {
  throw sdk::data_error("file " + quote(file_) + ": the header is not valid JSON at byte " +
                        std::to_string(position + kLengthBytes) + kRewrite);
}

// Offsets must tile the data: ascending, no hole, no overlap, nothing left over. Anything else
// could hide bytes from a scanner or alias two tensors.
void check_layout(const Header& header, std::uint64_t data_bytes, const std::string& file) {
  const std::string at = "file " + quote(file) + ": ";
  std::uint64_t covered = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& tensor : header.tensors) {
    const std::string offsets = at + "tensor " + quote(tensor.name) + " has data_offsets [" +
                                std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) +
                                "]";
    if (tensor.end < tensor.begin) {
      throw sdk::data_error(offsets + ", which end before they begin" + kRewrite);
    }
    if (tensor.end > data_bytes) {
      throw sdk::data_error(offsets + ", but the file holds only " + std::to_string(data_bytes) +
                            " bytes of data: it is truncated; fetch or save it again");
    }
    const std::uint64_t bytes =
        tensor_bytes(tensor.shape, tensor.dtype->size, at + "tensor " + quote(tensor.name));
    if (bytes != tensor.bytes()) {
      throw sdk::data_error(offsets + ", " + std::to_string(tensor.bytes()) +
                            " bytes, but its shape " + shape_text(tensor.shape) + " of " +
                            tensor.dtype->name + " needs " + std::to_string(bytes) + kRewrite);
    }
    if (tensor.begin != covered) {
      const std::string fault = tensor.begin < covered
                                    ? ", which overlap those of tensor " + quote(previous->name)
                                    : ", which leave a hole from byte " + std::to_string(covered);
      throw sdk::data_error(offsets + fault + kRewrite);
    }
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_bytes) {
    throw sdk::data_error(at + "the tensors cover " + std::to_string(covered) +
                          " bytes of data, but the file holds " + std::to_string(data_bytes) +
                          kRewrite);
  }
}

// A JSON string literal; a name that is not UTF-8 cannot be one.
std::string json_string(const std::string& value) {
  try {
    return Json(value).dump();
  } catch (const Json::type_error&) {
    throw sdk::usage_error(sdk::text("the name ", quote(value), " is not UTF-8; use another name"));
  }
}

}  // namespace

std::uint64_t tensor_bytes(const std::vector<std::int64_t>& shape, std::uint32_t element_size,
                           const std::string& what) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = element_size;
  for (std::int64_t dim : shape) {
    if (dim < 0) {
      throw sdk::data_error(what + " has shape " + shape_text(shape) +
                            " with a negative dim; give sizes of 0 or more");
    }
    if (dim != 0 && bytes > kMost / static_cast<std::uint64_t>(dim)) {
      throw sdk::data_error(what + " has shape " + shape_text(shape) +
                            ", whose size passes 2^63 bytes" + kRewrite);
    }
    bytes *= static_cast<std::uint64_t>(dim);
  }
  return bytes;
}

std::uint64_t header_length(std::string_view first_bytes, std::uint64_t file_size,
                            const std::string& file) {
  const std::string at = "file " + quote(file);
  if (file_size < kLengthBytes || first_bytes.size() < kLengthBytes) {
    throw sdk::data_error(at + " has " + std::to_string(file_size) +
                          " bytes, too few for a safetensors file; fetch or save it again");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  }
  if (length > kMaxHeaderBytes) {
    throw sdk::data_error(at + " announces a header of " + std::to_string(length) +
                          " bytes, above the format's limit of " + std::to_string(kMaxHeaderBytes) +
                          ": it is not a safetensors file; check the path");
  }
  if (length > file_size - kLengthBytes) {
    throw sdk::data_error(at + " announces a header of " + std::to_string(length) +
                          " bytes, but has " + std::to_string(file_size) +
                          " in all: it is truncated; fetch or save it again");
  }
  return length;
}

Header parse_header(std::string_view json, std::uint64_t file_size, const std::string& file) {
  const std::string at = "file " + quote(file) + ": ";
  if (json.empty() || json.front() != '{') {
    throw sdk::data_error(at + "the header does not begin with '{'" + kRewrite);
  }
  // The JSON library takes a zero byte for the end of the text and would not see what follows.
  if (const std::size_t zero = json.find('\0'); zero != std::string_view::npos) {
    throw sdk::data_error(at + "the header holds a zero byte at byte " +
                          std::to_string(zero + kLengthBytes) + kRewrite);
  }
  Header header;
  header.data_start = kLengthBytes + json.size();
  HeaderReader reader(&header, file);
  Json::sax_parse(json.begin(), json.end(), &reader);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  check_layout(header, file_size - header.data_start, file);
  return header;
}

std::string build_header(Header& header) {
  std::stable_sort(
      header.tensors.begin(), header.tensors.end(),
      [](const TensorEntry& a, const TensorEntry& b) { return a.dtype->size > b.dtype->size; });
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata) {
      if (text.back() != '{') text += ',';
      text += json_string(key) + ':' + json_string(value);
    }
    text += '}';
  }
  std::uint64_t offset = 0;
  for (TensorEntry& tensor : header.tensors) {
    tensor.begin = offset;
    tensor.end =
        offset + tensor_bytes(tensor.shape, tensor.dtype->size, "tensor " + quote(tensor.name));
    if (tensor.end < offset) {
      throw sdk::usage_error("tensor " + quote(tensor.name) +
                             " takes the file past 2^64 bytes; use smaller tensors");
    }
    offset = tensor.end;
    if (text.size() > 1) text += ',';
    text += json_string(tensor.name) +
            sdk::text(":{\"dtype\":\"", tensor.dtype->name, "\",\"shape\":[");
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (d > 0) text += ',';
      text += std::to_string(tensor.shape[d]);
    }
    text += sdk::text("],\"data_offsets\":[", tensor.begin, ",", tensor.end, "]}");
  }
  text += '}';
  while ((kLengthBytes + text.size()) % kDataAlignment != 0) text += ' ';
  if (text.size() > kMaxHeaderBytes) {
    throw sdk::usage_error(
        "a header of " + std::to_string(text.size()) + " bytes passes safetensors' limit of " +
        std::to_string(kMaxHeaderBytes) + "; use fewer tensors or shorter names in one group");
  }
  header.data_start = kLengthBytes + text.size();
  std::string length(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return length + text;
}

}  // namespace capstan::safetensors
