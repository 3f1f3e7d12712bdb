// The built plugins, through dlopen and the C ABI alone, as the host uses them.
#include <dlfcn.h>

#include <cstring>
#include <map>

#include "plugin_api/dataset.h"
#include "plugin_api/dataset_writer.h"
#include "plugin_api/store.h"
#include "plugin_api/tokenizer.h"
#include "plugin_api/tracker.h"
#include "tests/data_plugins/scratch.h"

namespace capstan {
namespace {

using data_test::names_in;
using data_test::read_file;
using data_test::Scratch;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- a host of nothing but a log -------------------------------------------------------------

struct TestHost : capstan_host {
  TestHost()
      : capstan_host{sizeof(capstan_host), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR, "test", "1",
                     &get_service} {}
  static const void* get_service(const capstan_host*, const char* id) {
    static constexpr capstan_log_service kLog{
        sizeof(capstan_log_service),
        [](const capstan_host* host, int32_t, const char*, const char* message) {
          static_cast<const TestHost*>(host)->messages.emplace_back(message);
        }};
    return std::strcmp(id, CAPSTAN_LOG_SERVICE) == 0 ? &kLog : nullptr;
  }
  mutable std::vector<std::string> messages;
};

// Options as the host would hand them over.
class OptionList {
 public:
  OptionList& set(const std::string& key, const std::string& value) {
    capstan_option_value& v = add(key, CAPSTAN_OPTION_STRING);
    v.s = texts_.emplace_back(std::make_unique<std::string>(value))->c_str();
    return *this;
  }
  OptionList& set_int(const std::string& key, std::int64_t value, std::int32_t type) {
    capstan_option_value& v = add(key, type);
    v.i = value;
    v.f = static_cast<double>(value);
    return *this;
  }
  OptionList& set_float(const std::string& key, double value) {
    add(key, CAPSTAN_OPTION_FLOAT).f = value;
    return *this;
  }
  const capstan_options* get() {
    options_ = {sizeof(capstan_options), values_.size(), values_.data()};
    return &options_;
  }

 private:
  capstan_option_value& add(const std::string& key, std::int32_t type) {
    auto value = sdk::sized<capstan_option_value>();
    value.key = texts_.emplace_back(std::make_unique<std::string>(key))->c_str();
    value.type = type;
    return values_.emplace_back(value);
  }
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<capstan_option_value> values_;
  capstan_options options_{};
};

const capstan_component* component(const char* path, const char* kind, const char* id) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    ADD_FAILURE() << ::dlerror();
    return nullptr;
  }
  const auto* entry = static_cast<const capstan_plugin*>(::dlsym(library, CAPSTAN_PLUGIN_SYMBOL));
  if (entry == nullptr || entry->magic != CAPSTAN_PLUGIN_MAGIC) {
    ADD_FAILURE() << path << " has no entry";
    return nullptr;
  }
  for (std::size_t i = 0; entry->get_component(i) != nullptr; ++i) {
    const capstan_component* found = entry->get_component(i);
    if (std::strcmp(found->kind, kind) == 0 && std::strcmp(found->id, id) == 0) return found;
  }
  ADD_FAILURE() << path << " has no " << kind << " " << id;
  return nullptr;
}

template <class Interface>
const Interface& interface_of(const char* path, const char* kind, const char* id,
                              const char* interface_id) {
  const capstan_component* found = component(path, kind, id);
  if (found == nullptr) std::abort();
  EXPECT_STREQ(found->interface_id, interface_id);
  return *static_cast<const Interface*>(found->vtable);
}

// The message of a failed call, "" of a good one.
std::string failure(capstan_status* status, std::int32_t code) {
  if (status == nullptr) return "";
  EXPECT_EQ(status->code, code) << status->message;
  const std::string message = status->message;
  status->release(status);
  return message;
}

// ---- store -----------------------------------------------------------------------------------

TEST(StorePlugin, WritesReadsListsAndRemoves) {
  const auto& store = interface_of<capstan_store_v1>(CAPSTAN_STORE_SAFETENSORS, "store",
                                                     "safetensors", CAPSTAN_STORE_INTERFACE);
  TestHost host;
  OptionList options;
  options.set_int("fsync", 1, CAPSTAN_OPTION_BOOL);
  options.set_int("direct", 1, CAPSTAN_OPTION_BOOL);
  void* self = nullptr;
  sdk::check(store.create(&host, options.get(), &self));

  Scratch scratch;
  const std::int64_t shape[] = {2, 3}, zero[] = {0, 0}, start[] = {0, 1}, extent[] = {2, 2};
  auto tensor = sdk::sized<capstan_store_tensor>();
  tensor.name = "w";
  tensor.group = "model";
  tensor.dtype = {CAPSTAN_DTYPE_INT, 32, 1};
  tensor.ndim = 2;
  tensor.shape = shape;
  void* writer = nullptr;
  const std::string path = scratch / "step-10";
  sdk::check(store.begin(self, path.c_str(), &tensor, 1, &writer));
  std::int32_t values[] = {1, 2, 3, 4, 5, 6};
  auto slice = sdk::sized<capstan_store_slice>();
  slice.name = "w";
  slice.group = "model";
  slice.ndim = 2;
  slice.start = zero;
  slice.extent = shape;
  slice.data = values;
  sdk::check(store.put(self, writer, &slice));
  sdk::check(store.put_text(self, writer, "capstan.json", "{}", 2));
  sdk::check(store.commit(self, writer));

  const char* const* names = nullptr;
  std::size_t count = 0;
  sdk::check(store.list(self, scratch.path().c_str(), &names, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_STREQ(names[0], "step-10");

  void* reader = nullptr;
  sdk::check(store.open(self, path.c_str(), &reader));
  ASSERT_EQ(store.tensor_count(self, reader), 1u);
  auto got = sdk::sized<capstan_store_tensor>();
  sdk::check(store.tensor(self, reader, 0, &got));
  EXPECT_STREQ(got.name, "w");
  EXPECT_STREQ(got.group, "model");
  EXPECT_EQ(got.dtype.code, CAPSTAN_DTYPE_INT);
  EXPECT_EQ(got.shape[1], 3);
  std::int32_t part[4] = {};
  slice.start = start;
  slice.extent = extent;
  slice.data = part;
  sdk::check(store.get(self, reader, &slice));
  EXPECT_THAT(part, ElementsAre(2, 3, 5, 6));
  const char* text = nullptr;
  std::size_t size = 0;
  sdk::check(store.get_text(self, reader, "capstan.json", &text, &size));
  EXPECT_EQ(std::string_view(text, size), "{}");
  EXPECT_THAT(failure(store.tensor(self, reader, 1, &got), CAPSTAN_BUG), HasSubstr("tensor 1"));
  store.close(self, reader);

  void* abandoned = nullptr;
  sdk::check(store.begin(self, (scratch / "step-20").c_str(), &tensor, 1, &abandoned));
  store.abort(self, abandoned);
  sdk::check(store.remove(self, path.c_str()));
  sdk::check(store.clean(self, scratch.path().c_str()));
  EXPECT_THAT(names_in(scratch.path()), IsEmpty());
  void* untouched = &host;
  EXPECT_THAT(failure(store.open(self, path.c_str(), &untouched), CAPSTAN_USAGE),
              HasSubstr("step-10"));
  EXPECT_EQ(untouched, &host);
  store.destroy(self);
}

// ---- tokenizer, dataset writer and dataset ---------------------------------------------------

// Text through the tokenizer into a shard.
void tokenize(const TestHost& host, const std::string& text, const std::string& path) {
  const auto& tokenizer = interface_of<capstan_tokenizer_v1>(CAPSTAN_TOKENIZER_BYTES, "tokenizer",
                                                             "bytes", CAPSTAN_TOKENIZER_INTERFACE);
  const auto& writer = interface_of<capstan_dataset_writer_v1>(
      CAPSTAN_DATASET_TOKENS, "dataset_writer", "tokens", CAPSTAN_DATASET_WRITER_INTERFACE);
  EXPECT_STREQ(writer.extension, ".ctok");
  OptionList none;
  void *bytes = nullptr, *encoder = nullptr, *shard = nullptr;
  sdk::check(tokenizer.create(&host, none.get(), &bytes));
  sdk::check(tokenizer.encoder_create(bytes, &encoder));
  auto request = sdk::sized<capstan_dataset_writer_request>();
  request.path = path.c_str();
  request.vocabulary = tokenizer.vocabulary(bytes);
  request.end_of_text = tokenizer.end_of_text(bytes);
  request.tokenizer = tokenizer.name(bytes);
  request.tokenizer_fingerprint = tokenizer.fingerprint(bytes);
  sdk::check(writer.create(&host, none.get(), &request, &shard));
  for (std::size_t at = 0; at < text.size(); at += 7) {
    const std::uint32_t* ids = nullptr;
    std::size_t count = 0;
    const std::size_t size = std::min<std::size_t>(7, text.size() - at);
    sdk::check(tokenizer.encode(bytes, encoder, text.data() + at, size, at + 7 >= text.size(), &ids,
                                &count));
    sdk::check(writer.append(shard, ids, count));
  }
  sdk::check(writer.finish(shard));
  tokenizer.encoder_destroy(bytes, encoder);
  tokenizer.destroy(bytes);
}

TEST(DatasetPlugin, ReadsBackTheTextThatWasTokenized) {
  TestHost host;
  Scratch scratch;
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  tokenize(host, text, scratch / "train.ctok");

  const auto& dataset = interface_of<capstan_dataset_v1>(CAPSTAN_DATASET_TOKENS, "dataset",
                                                         "tokens", CAPSTAN_DATASET_INTERFACE);
  OptionList options;
  options.set("order", "sequential")
      .set_int("sample_stride", 0, CAPSTAN_OPTION_INT)
      .set("source.0.path", scratch / "train.ctok")
      .set_float("source.0.weight", 1.0)
      .set("source.0.format", "auto")
      .set("validation.format", "auto")
      .set_int("verify", 1, CAPSTAN_OPTION_BOOL);
  auto request = sdk::sized<capstan_dataset_request>();
  request.split = CAPSTAN_SPLIT_TRAIN;
  request.sequence_length = 100;
  request.vocabulary = 256;
  request.seed = 1;
  void* self = nullptr;
  sdk::check(dataset.create(&host, options.get(), &request, &self));
  EXPECT_EQ(dataset.epoch_size(self), 2);
  EXPECT_THAT(dataset.description(self), HasSubstr("256 tokens"));

  std::int32_t tokens[100], targets[100];
  const char* fields[] = {"targets", "tokens"};
  void* buffers[] = {targets, tokens};
  auto sample = sdk::sized<capstan_sample_request>();
  sample.index = 1;
  sample.field_count = 2;
  sample.fields = fields;
  sample.buffers = buffers;
  sdk::check(dataset.read(self, &sample));
  EXPECT_EQ(tokens[0], 100);
  EXPECT_EQ(targets[99], 200);
  fields[0] = "chosen";
  EXPECT_THAT(failure(dataset.read(self, &sample), CAPSTAN_UNSUPPORTED), HasSubstr("'chosen'"));
  dataset.destroy(self);

  request.split = CAPSTAN_SPLIT_VALIDATION;
  EXPECT_THAT(failure(dataset.create(&host, options.get(), &request, &self), CAPSTAN_USAGE),
              HasSubstr("[data.validation]"));
  options.set("validation.path", scratch / "train.ctok");
  sdk::check(dataset.create(&host, options.get(), &request, &self));
  fields[0] = "targets";
  sample.index = 0;
  sdk::check(dataset.read(self, &sample));
  EXPECT_EQ(tokens[0], 0);
  dataset.destroy(self);
}

TEST(TokenizerPlugin, BytesComeBackAsTheyWere) {
  const auto& tokenizer = interface_of<capstan_tokenizer_v1>(CAPSTAN_TOKENIZER_BYTES, "tokenizer",
                                                             "bytes", CAPSTAN_TOKENIZER_INTERFACE);
  TestHost host;
  OptionList none;
  void* self = nullptr;
  sdk::check(tokenizer.create(&host, none.get(), &self));
  const std::uint32_t ids[] = {0xce, 0xbb, 0, 255};
  char text[4];
  std::size_t size = 0;
  sdk::check(tokenizer.decode(self, ids, 4, nullptr, 0, &size));
  EXPECT_EQ(size, 4u);
  sdk::check(tokenizer.decode(self, ids, 4, text, sizeof text, &size));
  EXPECT_EQ(std::string_view(text, size), std::string_view("\xce\xbb\0\xff", 4));
  const std::uint32_t bad[] = {1, 256};
  EXPECT_THAT(failure(tokenizer.decode(self, bad, 2, text, 4, &size), CAPSTAN_DATA),
              HasSubstr("id 256 at position 1"));
  tokenizer.destroy(self);
}

// ---- tracker ---------------------------------------------------------------------------------

TEST(TrackerPlugin, ResumesWhereTheCheckpointIs) {
  const auto& tracker = interface_of<capstan_tracker_v1>(CAPSTAN_TRACKER_JSONL, "tracker", "jsonl",
                                                         CAPSTAN_TRACKER_INTERFACE);
  TestHost host;
  Scratch scratch;
  OptionList options;
  options.set("file", "metrics.jsonl")
      .set_int("queue", 64, CAPSTAN_OPTION_INT)
      .set_int("fsync_every", 0, CAPSTAN_OPTION_INT);
  const auto log = [&](std::int64_t resume, std::int64_t first, std::int64_t last) {
    void* self = nullptr;
    sdk::check(tracker.create(&host, options.get(), scratch.path().c_str(), resume, &self));
    for (std::int64_t step = first; step <= last; ++step) {
      auto loss = sdk::sized<capstan_metric>();
      loss.name = "loss";
      loss.value = static_cast<double>(resume);
      sdk::check(tracker.metrics(self, "train", step, &loss, 1));
    }
    sdk::check(tracker.event(self, "end", last, nullptr));
    sdk::check(tracker.flush(self));
    tracker.destroy(self);
  };
  log(-1, 1, 3);
  log(2, 3, 3);
  EXPECT_EQ(read_file(scratch / "metrics.jsonl"),
            "{\"step\":1,\"loss\":-1}\n{\"step\":2,\"loss\":-1}\n{\"step\":3,\"loss\":2}\n"
            "{\"step\":3,\"event\":\"end\",\"text\":\"\"}\n");
  EXPECT_THAT(host.messages, ElementsAre(HasSubstr("took 2 records")));
  log(-1, 1, 1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("metrics.jsonl", "metrics.jsonl.old"));
}

TEST(TrackerPlugin, ReportsDropsInTheLogItself) {
  const auto& tracker = interface_of<capstan_tracker_v1>(CAPSTAN_TRACKER_JSONL, "tracker", "jsonl",
                                                         CAPSTAN_TRACKER_INTERFACE);
  TestHost host;
  Scratch scratch;
  OptionList options;
  options.set("file", "metrics.jsonl")
      .set_int("queue", 1, CAPSTAN_OPTION_INT)
      .set_int("fsync_every", 0, CAPSTAN_OPTION_INT);
  void* self = nullptr;
  sdk::check(tracker.create(&host, options.get(), scratch.path().c_str(), -1, &self));
  for (std::int64_t step = 0; step < 100'000; ++step) {
    sdk::check(tracker.metrics(self, "train", step, nullptr, 0));
  }
  tracker.destroy(self);
  EXPECT_THAT(read_file(scratch / "metrics.jsonl"), HasSubstr("\"event\":\"records_dropped\""));
  EXPECT_THAT(host.messages, ElementsAre(HasSubstr("found the queue full")));
}

}  // namespace
}  // namespace capstan
