#include "tests/ops/gradient_world.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "runtime/program/autodiff.h"
#include "runtime/status.h"

namespace capstan {
namespace {

capstan_option_value Option(const char* key, int32_t type, int64_t i, const char* s = nullptr) {
  capstan_option_value value{};
  value.struct_size = sizeof(value);
  value.key = key;
  value.type = type;
  value.i = i;
  value.f = static_cast<double>(i);
  value.s = s;
  return value;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice() {
  void* library = dlopen(CAPSTAN_TEST_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return UsageError(std::string(dlerror()));
  const auto* plugin = static_cast<const capstan_plugin*>(dlsym(library, CAPSTAN_PLUGIN_SYMBOL));
  if (plugin == nullptr) return UsageError(CAPSTAN_TEST_CPU_PLUGIN, " exports no plugin");
  static const capstan_host host = {
      sizeof(capstan_host),
      CAPSTAN_ABI_MAJOR,
      CAPSTAN_ABI_MINOR,
      "test",
      "0",
      [](const capstan_host*, const char*) -> const void* { return nullptr; }};
  const std::vector<capstan_option_value> values = {
      Option("threads", CAPSTAN_OPTION_INT, 1),
      Option("kernels", CAPSTAN_OPTION_STRING, 0, "reference"),
      Option("huge_pages", CAPSTAN_OPTION_BOOL, 0), Option("bind", CAPSTAN_OPTION_BOOL, 0),
      Option("flush_subnormals", CAPSTAN_OPTION_BOOL, 0)};
  const capstan_options options = {sizeof(capstan_options), values.size(), values.data()};
  const auto* vtable = static_cast<const capstan_device_v1*>(plugin->get_component(0)->vtable);
  return Device::Create(vtable, &host, &options, "cpu");
}

}  // namespace

Device* TestDevice() {
  static Device* const device = [] {
    absl::StatusOr<std::unique_ptr<Device>> opened = OpenDevice();
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? opened->release() : nullptr;
  }();
  return device;
}

// A linear congruential generator (Knuth's MMIX constants), its high bits.
double GradientWorld::Random() {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(state_ >> 11) / 9007199254740992.0;
}

std::vector<double> GradientWorld::RandomValues(const Dims& shape, double low, double high) {
  std::vector<double> values(ElementCount(shape));
  for (double& v : values) v = low + (high - low) * Random();
  return values;
}

TensorId GradientWorld::Store(TensorId t, const std::vector<double>& values) {
  Value value{t, std::vector<char>(values.size() * sizeof(double))};
  std::memcpy(value.bytes.data(), values.data(), value.bytes.size());
  values_.push_back(std::move(value));
  return t;
}

TensorId GradientWorld::P(const std::string& name, const Dims& shape, double low, double high) {
  const TensorId t = Parameter(name, shape, "", "f64");
  parameters_.push_back(t);
  return Store(t, RandomValues(shape, low, high));
}

TensorId GradientWorld::AwayFromZero(const std::string& name, const Dims& shape) {
  const TensorId t = Parameter(name, shape, "", "f64");
  parameters_.push_back(t);
  std::vector<double> values = RandomValues(shape, 0.2, 1.2);
  for (double& v : values) v = Random() < 0.5 ? -v : v;
  return Store(t, values);
}

TensorId GradientWorld::Fixed(const std::string& name, const Dims& shape, double low, double high) {
  return Store(Input(name, shape, "", "f64"), RandomValues(shape, low, high));
}

TensorId GradientWorld::Integers(const std::string& name, const std::string& dtype,
                                 const Dims& shape, std::vector<int64_t> values) {
  const TensorId t = Input(name, shape, "", dtype);
  Value value{t, std::vector<char>(program().tensor(t).bytes())};
  const size_t width = static_cast<size_t>(DTypeBytes(program().tensor(t).dtype()));
  // Little-endian two's complement: the low bytes are the narrower number.
  for (size_t i = 0; i < values.size(); ++i) {
    std::memcpy(value.bytes.data() + i * width, &values[i], width);
  }
  values_.push_back(std::move(value));
  return t;
}

TensorId GradientWorld::Ids(const std::string& name, const Dims& shape, int64_t low, int64_t high) {
  std::vector<int64_t> ids(ElementCount(shape));
  for (int64_t& id : ids)
    id = low + static_cast<int64_t>(Random() * static_cast<double>(high - low));
  return Integers(name, "i32", shape, std::move(ids));
}

void GradientWorld::SumToLoss(TensorId y) {
  const Dims shape = program().tensor(y).shape();
  TensorId sum = Op("mul", {y, Fixed("loss_weights", shape)})[0];
  for (size_t d = 0; d < shape.size(); ++d) sum = Op("reduce_sum", {sum}, {{"dim", int64_t{0}}})[0];
  MarkLoss(sum);
}

void GradientWorld::MarkLoss(TensorId loss) {
  loss_ = loss;
  program().mutable_tensor(loss).loss_root = true;
}

std::vector<std::string> GradientWorld::Kinds() const {
  std::set<std::string> kinds;
  const Program& p = const_cast<GradientWorld*>(this)->program();
  for (const Segment& s : p.segments()) {
    for (OpId o : s.ops) kinds.insert(p.op(o).kind());
  }
  return {kinds.begin(), kinds.end()};
}

void GradientWorld::Compile() {
  absl::Status s = Differentiate(program(), {});
  ASSERT_TRUE(s.ok()) << s;
  program().SetDefaultSchedule();
  s = plan_.Add(program(), TestDevice(), /*seed=*/7);
  ASSERT_TRUE(s.ok()) << s;
  absl::StatusOr<std::unique_ptr<Storage>> storage = Storage::Allocate(TestDevice(), &plan_);
  ASSERT_TRUE(storage.ok()) << storage.status();
  storage_ = *std::move(storage);
  absl::StatusOr<std::unique_ptr<Executor>> executor =
      Executor::Compile(&program(), storage_.get());
  ASSERT_TRUE(executor.ok()) << executor.status();
  executor_ = *std::move(executor);
  for (const Value& v : values_) {
    std::memcpy(storage_->Data(program(), v.tensor, 0), v.bytes.data(), v.bytes.size());
  }
}

double* GradientWorld::Data(TensorId t) {
  return reinterpret_cast<double*>(storage_->Data(program(), t, 0));
}

double GradientWorld::Loss() {
  const absl::Status s = executor_->Run(/*step=*/3);
  EXPECT_TRUE(s.ok()) << s;
  return *Data(loss_);
}

void GradientWorld::Check(double tolerance) {
  // The host reads the loss after the step: a name keeps its memory.
  const TensorId kept = Add(CAPSTAN_STATE, "kept_loss", "f64", program().tensor(loss_).shape(), "");
  Op("accumulate", {loss_}, {}, {kept});
  ASSERT_NO_FATAL_FAILURE(Compile());
  loss_ = kept;
  Loss();
  double scale = 1e-3;
  std::vector<std::vector<double>> gradients;
  for (TensorId p : parameters_) {
    const Tensor& t = program().tensor(p);
    const TensorId g = program().FindTensor(t.name + ".grad");
    ASSERT_NE(g, kNone) << t.name << " has no gradient\n" << DumpProgram(program());
    gradients.emplace_back(Data(g), Data(g) + t.elements());
    for (double v : gradients.back()) scale = std::max(scale, std::fabs(v));
  }
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    double* const values = Data(parameters_[i]);
    for (size_t j = 0; j < gradients[i].size(); ++j) {
      const double at = values[j];
      values[j] = at + kStep;
      const double above = Loss();
      values[j] = at - kStep;
      const double below = Loss();
      values[j] = at;
      ASSERT_NEAR(gradients[i][j], (above - below) / (2 * kStep), tolerance * scale)
          << program().TensorName(parameters_[i]) << " element " << j << "\n"
          << DumpProgram(program());
    }
  }
}

}  // namespace capstan
