#include "runtime/run/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plugin_api/model.h"
#include "runtime/status.h"

namespace capstan {

int32_t SampleToken(const float* logits, int64_t count, const SamplingOptions& options,
                    std::mt19937_64& random, std::vector<int32_t>& order) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0);
  auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
  int64_t kept = count;
  if (options.top_k > 0) kept = std::min<int64_t>(kept, options.top_k);
  if (kept < count || options.top_p < 1.0) {
    std::partial_sort(order.begin(), order.begin() + kept, order.end(), likelier);
  }
  const float best = *std::max_element(logits, logits + count);
  auto weight = [&](int32_t id) {
    return std::exp((double{logits[id]} - best) / options.temperature);
  };
  double total = 0;
  for (int64_t i = 0; i < kept; ++i) total += weight(order[i]);
  if (options.top_p < 1.0) {
    double sum = 0;
    int64_t i = 0;
    while (i < kept && sum < options.top_p * total) sum += weight(order[i++]);
    kept = std::max<int64_t>(1, i);
    total = sum;
  }
  const double uniform = static_cast<double>(random() >> 11) * 0x1.0p-53;
  double left = uniform * total;
  for (int64_t i = 0; i < kept; ++i) {
    left -= weight(order[i]);
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(Session* session,
                                                             const std::string& folder,
                                                             int64_t prompt_length,
                                                             int64_t new_tokens) {
  std::unique_ptr<Generator> g(new Generator());
  g->session_ = session;
  CAPSTAN_ASSIGN_OR_RETURN(Device * device, session->device());
  const int64_t limit = session->model_info().max_sequence;
  const int64_t wanted = prompt_length + new_tokens;
  g->context_ = limit > 0 ? std::min(limit, wanted) : wanted;
  g->window_ = std::max<int64_t>(1, g->context_ / 2);
  const bool slides = wanted > g->context_;
  CAPSTAN_ASSIGN_OR_RETURN(
      g->prompt_, g->MakeStage(CAPSTAN_MODE_PREFILL, std::min(prompt_length, g->context_)));
  CAPSTAN_ASSIGN_OR_RETURN(g->decode_, g->MakeStage(CAPSTAN_MODE_DECODE, 1));
  if (slides) {
    CAPSTAN_ASSIGN_OR_RETURN(g->reread_, g->MakeStage(CAPSTAN_MODE_PREFILL, g->window_));
  }
  CAPSTAN_ASSIGN_OR_RETURN(g->storage_, Storage::Allocate(device, &g->plan_));
  CAPSTAN_RETURN_IF_ERROR(g->storage_->CheckLedger());
  for (Stage* stage : {&g->prompt_, &g->decode_, &g->reread_}) {
    if (stage->program == nullptr) continue;
    CAPSTAN_ASSIGN_OR_RETURN(stage->executor,
                             Executor::Compile(stage->program.get(), g->storage_.get()));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Store* store, session->store());
  CAPSTAN_RETURN_IF_ERROR(
      LoadWeights(*store, Ranks(), folder, *g->decode_.program, *g->storage_).status());
  return g;
}

absl::StatusOr<Generator::Stage> Generator::MakeStage(int mode, int64_t tokens) {
  Stage stage;
  GenerateShape shape;
  shape.batch = 1;
  shape.tokens = tokens;
  shape.cache_length = context_;
  CAPSTAN_ASSIGN_OR_RETURN(stage.program, ComposeGenerate(session_->ingredients(), mode, shape));
  CAPSTAN_ASSIGN_OR_RETURN(Device * device, session_->device());
  // A Program's address names it in the plan; the unique_ptr keeps it still while the Stage moves.
  CAPSTAN_RETURN_IF_ERROR(plan_.Add(*stage.program, device, session_->config().run.seed));
  return stage;
}

absl::Status Generator::Feed(Stage& stage, const int32_t* tokens, int64_t count, int64_t cached) {
  const Program& program = *stage.program;
  auto put = [&](const char* name, const std::vector<int32_t>& values) -> absl::Status {
    const TensorId t = program.FindTensor(name);
    if (t == kNone) return absl::OkStatus();
    if (program.tensor(t).elements() != static_cast<int64_t>(values.size())) {
      return BugError("input '", std::string(name), "' of program '", program.options().name,
                      "' has ", program.tensor(t).elements(), " elements, given ", values.size());
    }
    return storage_->device()->Copy(storage_->Data(program, t, 0), values.data(),
                                    values.size() * sizeof(int32_t));
  };
  std::vector<int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(cached));
  CAPSTAN_RETURN_IF_ERROR(put("tokens", std::vector<int32_t>(tokens, tokens + count)));
  CAPSTAN_RETURN_IF_ERROR(put("position", positions));
  CAPSTAN_RETURN_IF_ERROR(put(kInputCachePosition, {static_cast<int32_t>(cached)}));
  CAPSTAN_RETURN_IF_ERROR(put(kInputLast, {static_cast<int32_t>(count - 1)}));
  CAPSTAN_RETURN_IF_ERROR(stage.executor->Run(0));
  const TensorId logits = program.FindTensor(kLogits);
  const int64_t count_logits = program.tensor(logits).elements();
  logits_.resize(count_logits);
  if (!SameDType(program.tensor(logits).dtype(), kF64)) {
    return storage_->device()->Copy(logits_.data(), storage_->Data(program, logits, 0),
                                    count_logits * sizeof(float));
  }
  std::vector<double> wide(count_logits);
  CAPSTAN_RETURN_IF_ERROR(storage_->device()->Copy(wide.data(), storage_->Data(program, logits, 0),
                                                   count_logits * sizeof(double)));
  std::copy(wide.begin(), wide.end(), logits_.begin());
  return absl::OkStatus();
}

absl::Status Generator::Run(std::vector<int32_t> tokens, int64_t new_tokens, int64_t vocabulary,
                            const SamplingOptions& options,
                            const std::function<bool(int32_t)>& emit) {
  if (tokens.empty())
    return UsageError("--prompt is empty; give at least one character to continue");
  std::mt19937_64 random(options.seed);
  std::vector<int32_t> order;
  const int64_t fits = prompt_.program->options().sequence_length;
  if (static_cast<int64_t>(tokens.size()) < fits) {
    return UsageError("a prompt of ", tokens.size(), " tokens was given; this generator takes ",
                      fits, " or more");
  }
  if (static_cast<int64_t>(tokens.size()) > fits) tokens.erase(tokens.begin(), tokens.end() - fits);
  CAPSTAN_RETURN_IF_ERROR(Feed(prompt_, tokens.data(), fits, 0));
  int64_t cached = fits;
  for (int64_t i = 0; i < new_tokens; ++i) {
    const int64_t choices = std::min<int64_t>(vocabulary, static_cast<int64_t>(logits_.size()));
    const int32_t next = SampleToken(logits_.data(), choices, options, random, order);
    tokens.push_back(next);
    if (!emit(next) || i + 1 == new_tokens) break;
    if (cached < context_) {
      CAPSTAN_RETURN_IF_ERROR(Feed(decode_, &next, 1, cached));
      ++cached;
    } else {  // the context is full: read its newer half again
      CAPSTAN_RETURN_IF_ERROR(Feed(reread_, tokens.data() + tokens.size() - window_, window_, 0));
      cached = window_;
    }
  }
  return absl::OkStatus();
}

absl::Status Generator::Score(const std::vector<int32_t>& tokens,
                              const std::function<void(const std::vector<float>&)>& logits) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t prompt = prompt_.program->options().sequence_length;
  if (count < prompt || count > context_) {
    return UsageError("a sequence of ", count, " tokens was given; this generator takes ", prompt,
                      " to ", context_);
  }
  CAPSTAN_RETURN_IF_ERROR(Feed(prompt_, tokens.data(), prompt, 0));
  logits(logits_);
  for (int64_t i = prompt; i < count; ++i) {
    CAPSTAN_RETURN_IF_ERROR(Feed(decode_, &tokens[i], 1, i));
    logits(logits_);
  }
  return absl::OkStatus();
}

}  // namespace capstan
