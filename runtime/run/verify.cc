#include "runtime/run/verify.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "nlohmann/json.hpp"
#include "runtime/run/convert.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr const char* kSteps = "capstan.json";  // what makes a folder a bundle to the store
constexpr double kFloor = 1e-3;                 // of the norm of all tensors of a kind
constexpr double kNoise = 1e-6;  // a gradient this small against the norm of all is rounding

// An open snapshot.
class Snapshot {
 public:
  static absl::StatusOr<std::unique_ptr<Snapshot>> Open(const Store& store,
                                                        const std::string& path) {
    std::unique_ptr<Snapshot> s(new Snapshot(store));
    CAPSTAN_RETURN_IF_ERROR(store->open(store.self(), path.c_str(), &s->handle_));
    for (size_t i = 0; i < store->tensor_count(store.self(), s->handle_); ++i) {
      capstan_store_tensor t{};
      t.struct_size = sizeof(t);
      CAPSTAN_RETURN_IF_ERROR(store->tensor(store.self(), s->handle_, i, &t));
      s->tensors_[{t.group, t.name}] = {t.dtype, Dims(t.shape, t.shape + t.ndim)};
    }
    const char* text = nullptr;
    size_t size = 0;
    CAPSTAN_RETURN_IF_ERROR(store->get_text(store.self(), s->handle_, kSteps, &text, &size));
    const auto json = nlohmann::json::parse(std::string(text, size), nullptr, false);
    if (!json.is_array()) return DataError(path, "/", kSteps, " is not a list of steps");
    for (const auto& step : json) s->steps_.push_back({step["loss"], step["grad_norm"]});
    return s;
  }
  ~Snapshot() {
    if (handle_ != nullptr) store_->close(store_.self(), handle_);
  }

  using Key = std::pair<std::string, std::string>;  // group, name
  struct Shape {
    DType dtype;
    Dims shape;
  };
  const std::map<Key, Shape>& tensors() const { return tensors_; }
  const std::vector<StepRecord>& steps() const { return steps_; }

  absl::StatusOr<std::vector<double>> Values(const Key& key) const {
    const Shape& t = tensors_.at(key);
    const int64_t n = ElementCount(t.shape);
    std::vector<char> raw(static_cast<size_t>(n * DTypeBytes(t.dtype)));
    const Dims start(t.shape.size(), 0);
    const capstan_store_slice slice{sizeof(capstan_store_slice),
                                    key.second.c_str(),
                                    key.first.c_str(),
                                    static_cast<int32_t>(t.shape.size()),
                                    start.data(),
                                    t.shape.data(),
                                    raw.data()};
    CAPSTAN_RETURN_IF_ERROR(store_->get(store_.self(), handle_, &slice));
    std::vector<double> values(static_cast<size_t>(n));
    CAPSTAN_RETURN_IF_ERROR(
        Convert(raw.data(), t.dtype, reinterpret_cast<char*>(values.data()), kF64, n));
    return values;
  }

 private:
  explicit Snapshot(const Store& store) : store_(store) {}
  const Store& store_;
  void* handle_ = nullptr;
  std::map<Key, Shape> tensors_;
  std::vector<StepRecord> steps_;
};

const char* KindOf(const std::string& group) {
  return group == kSnapshotParameters  ? "parameter"
         : group == kSnapshotGradients ? "gradient"
                                       : "state";
}

struct Magnitudes {
  double largest = 0, squares = 0;
  double difference = 0, square_difference = 0;
};

absl::StatusOr<Magnitudes> Compare(const Snapshot& a, const Snapshot& b, const Snapshot::Key& key) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<double> x, a.Values(key));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<double> y, b.Values(key));
  Magnitudes m;
  for (size_t i = 0; i < x.size(); ++i) {
    m.largest = std::max(m.largest, std::abs(y[i]));
    m.squares += y[i] * y[i];
    const double d = std::abs(x[i] - y[i]);
    if (!(d <= m.difference)) m.difference = d;  // a NaN counts
    m.square_difference += d * d;
  }
  return m;
}

struct Comparison {
  std::map<Snapshot::Key, Magnitudes> tensors;
  std::map<std::string, double> squares;  // by group
};

absl::StatusOr<Comparison> CompareAll(const Snapshot& a, const Snapshot& b) {
  Comparison all;
  for (const auto& [key, t] : b.tensors()) {
    const auto other = a.tensors().find(key);
    if (other == a.tensors().end() || other->second.shape != t.shape) {
      return BugError(KindOf(key.first), " '", key.second, "' of shape ", ShapeString(t.shape),
                      " is in the run of one rank, but not, or with another shape, in the other");
    }
    CAPSTAN_ASSIGN_OR_RETURN(all.tensors[key], Compare(a, b, key));
    all.squares[key.first] += all.tensors[key].squares;
  }
  if (a.tensors().size() != b.tensors().size()) {
    return BugError("the run holds ", a.tensors().size(), " tensors, that of one rank ",
                    b.tensors().size());
  }
  return all;
}

double Ratio(double difference, double scale) {
  return difference == 0 ? 0 : difference / std::max(scale, 1e-30);
}

absl::Status CompareSteps(const Snapshot& a, const Snapshot& b, std::vector<Difference>& out) {
  if (a.steps().size() != b.steps().size()) {
    return BugError("one run made ", a.steps().size(), " steps, the other ", b.steps().size());
  }
  for (size_t i = 0; i < a.steps().size(); ++i) {
    const auto relative = [](double x, double y) {
      return std::abs(x - y) / std::max(std::abs(y), 1e-30);
    };
    const std::string name = StrCat("step ", i + 1);
    out.push_back({"loss", name, relative(a.steps()[i].loss, b.steps()[i].loss), 1, false});
    out.push_back(
        {"grad_norm", name, relative(a.steps()[i].grad_norm, b.steps()[i].grad_norm), 1, false});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSnapshot(const Store& store, const Ranks& ranks, const std::string& path,
                           const Program& program, Storage& storage,
                           const std::vector<StepRecord>& steps) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepRecord& s : steps) list.push_back({{"loss", s.loss}, {"grad_norm", s.grad_norm}});
  return SaveSnapshot(store, ranks, path, program, storage, {{kSteps, list.dump()}});
}

absl::StatusOr<std::vector<Difference>> CompareSnapshots(const Store& store,
                                                         const std::string& path,
                                                         const std::string& reference) {
  std::vector<Difference> out;
  double gradient_norm = 0;
  std::map<std::string, double> largest;  // of each gradient
  {
    CAPSTAN_ASSIGN_OR_RETURN(const auto a, Snapshot::Open(store, path + kFirstSnapshot));
    CAPSTAN_ASSIGN_OR_RETURN(const auto b, Snapshot::Open(store, reference + kFirstSnapshot));
    CAPSTAN_ASSIGN_OR_RETURN(const Comparison all, CompareAll(*a, *b));
    gradient_norm = std::sqrt(all.squares.at(kSnapshotGradients));
    for (const auto& [key, m] : all.tensors) {
      if (key.first != kSnapshotGradients) continue;
      largest[key.second] = m.largest;
      const double scale = std::max(m.largest, kFloor * gradient_norm);
      out.push_back({KindOf(key.first), key.second, Ratio(m.difference, scale), 1, false});
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(const auto a, Snapshot::Open(store, path + kLastSnapshot));
  CAPSTAN_ASSIGN_OR_RETURN(const auto b, Snapshot::Open(store, reference + kLastSnapshot));
  CAPSTAN_RETURN_IF_ERROR(CompareSteps(*a, *b, out));
  CAPSTAN_ASSIGN_OR_RETURN(const Comparison all, CompareAll(*a, *b));
  for (const auto& [key, m] : all.tensors) {
    if (key.first == kSnapshotGradients) continue;
    Difference d{KindOf(key.first), key.second, 0, static_cast<int64_t>(a->steps().size()), false};
    const double scale =
        std::max(std::sqrt(m.squares), kFloor * std::sqrt(all.squares.at(key.first)));
    d.error = Ratio(std::sqrt(m.square_difference), scale);
    const std::string parameter =
        d.kind == "state" ? key.second.substr(0, key.second.rfind('.')) : key.second;
    const auto gradient = largest.find(parameter + ".grad");
    d.noise = gradient != largest.end() && gradient->second < kNoise * gradient_norm;
    out.push_back(std::move(d));
  }
  std::stable_sort(out.begin(), out.end(), [](const Difference& x, const Difference& y) {
    if (std::isnan(x.error) != std::isnan(y.error)) return std::isnan(x.error);
    return x.error / static_cast<double>(x.steps) > y.error / static_cast<double>(y.steps);
  });
  return out;
}

}  // namespace capstan
