// Draws each option of a problem. Functions and scales are mild: their errors stay below the promise whatever the data.
#include "random_problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <random>

namespace gdpa::tool {
namespace {

class Drawing {
 public:
  Drawing(uint64_t seed, TypeName type, DeviceKind kind) : random_(seed), type_(std::move(type)), kind_(kind) {}

  std::vector<std::string> options() {
    draw_type();
    draw_shape();
    draw_function();
    draw_mask();
    draw_scales();
    // The promise for fast functions is for many scores. Only calls that are not deterministic count their scores.
    constexpr int64_t few_scores = 4096;
    if (is_deterministic_ && !is_exact_ && scores() <= few_scores) add("--accuracy", "exact");
    if (!tensors_.empty()) {
      words_.emplace_back("--tensor");
      words_.insert(words_.end(), tensors_.begin(), tensors_.end());
    }
    add("--seed", std::to_string(random_() >> 32));
    return words_;
  }

 private:
  enum class Form { jagged, dense, shared_q, shared_k };

  void add(const std::string& option, const std::string& value) { words_.insert(words_.end(), {option, value}); }

  bool chance(double probability) { return static_cast<double>(random_() >> 11) * 0x1p-53 < probability; }
  int64_t whole(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  std::string decimal(double low, double high) {
    return fmt::format("{:.3g}", low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53);
  }

  void draw_type() {
    add("--dtype", type_ == "tf32" ? "float32" : type_);
    if (type_ == "tf32") words_.emplace_back("--allow-tf32");
    is_deterministic_ = chance(0.25);
    if (is_deterministic_) words_.emplace_back("--deterministic");
    is_exact_ = chance(0.3);
    if (is_exact_) add("--accuracy", "exact");
  }

  int64_t draw_head_dim() {
    if (kind_ == DeviceKind::cpu && chance(0.3)) return pick<int64_t>({5, 12, 33, 100});
    return pick<int64_t>({8, 16, 32, 40, 64, 64, 64, 72, 96, 128, 128, 128, 160, 192, 256});
  }

  void draw_shape() {
    const int64_t heads_k = whole(1, 3);
    heads_ = heads_k * pick<int64_t>({1, 1, 1, 2, 4});
    head_dim_ = draw_head_dim();
    head_dim_v_ = chance(0.7) ? head_dim_ : draw_head_dim();
    add("--heads", std::to_string(heads_));
    add("--heads-k", std::to_string(heads_k));
    add("--head-dim", std::to_string(head_dim_));
    add("--head-dim-v", std::to_string(head_dim_v_));
    form_ = pick({Form::jagged, Form::jagged, Form::jagged, Form::jagged, Form::dense, Form::shared_q, Form::shared_k});
    draw_lengths();
    if (form_ == Form::dense) {
      words_.emplace_back("--dense");
      add("--batch", std::to_string(lengths_q_.size()));
      add("--max-length", std::to_string(lengths_q_[0]));
      add("--max-length-k", std::to_string(lengths_k_[0]));
      return;
    }
    const auto add_side = [this](char side, const std::vector<int64_t>& lengths, bool is_shared) {
      add(fmt::format("--{}-{}", is_shared ? "shared" : "lengths", side),
          is_shared ? std::to_string(lengths[0]) : fmt::format("{}", fmt::join(lengths, ",")));
    };
    add_side('q', lengths_q_, form_ == Form::shared_q);
    add_side('k', lengths_k_, form_ == Form::shared_k);
  }

  /// The first sequence of both sides has at least eight rows, because the error of a few scores is one of chance.
  void draw_lengths() {
    const int64_t batch = whole(1, 5);
    const auto side = [&](bool has_equal_lengths) {
      const int64_t longest = pick<int64_t>({8, 40, 130, 130, 300, 300, 700, 1500});
      std::vector<int64_t> lengths;
      for (int64_t b = 0; b < batch; ++b) {
        const bool is_equal = has_equal_lengths && b > 0;
        lengths.push_back(is_equal ? lengths[0] : chance(0.15) ? whole(0, 1) : whole(1, longest));
      }
      lengths[0] = std::max<int64_t>(lengths[0], 8);
      return lengths;
    };
    lengths_q_ = side(form_ == Form::dense || form_ == Form::shared_q);
    lengths_k_ = side(form_ == Form::dense || form_ == Form::shared_k);
    if (form_ == Form::jagged && chance(0.4)) lengths_k_ = lengths_q_;
    // The reference takes about 4 ns for each score and column of a head.
    constexpr int64_t most_columns_of_scores = 60'000'000;
    while (scores() * (head_dim_ + head_dim_v_) > most_columns_of_scores) {
      for (std::vector<int64_t>* lengths : {&lengths_q_, &lengths_k_}) {
        for (int64_t& length : *lengths) length -= length / 4;
      }
    }
  }

  int64_t scores() const {
    int64_t sum = 0;
    for (std::size_t b = 0; b < lengths_q_.size(); ++b) sum += lengths_q_[b] * lengths_k_[b];
    return heads_ * sum;
  }

  void bind(const std::string& name, const std::string& value) { tensors_.push_back(name + "=" + value); }
  void bind_random(const std::string& name, const std::string& shape) {
    const bool has_type = chance(0.5) && (type_ == "bfloat16" || type_ == "float16");
    bind(name, "randn:" + shape + (has_type ? ":" + type_ : ""));
  }
  /// Whole seconds for each token, as time_q and time_k.
  void bind_times() {
    if (has_times_) return;
    has_times_ = true;
    bind("time_q", "times:tokens_q");
    bind("time_k", "times:tokens_k");
  }

  void draw_function() { add("--activation", chance(0.45) ? draw_name() : draw_expression()); }

  std::string draw_name() {
    return pick<const char*>({"identity", "relu", "relu2", "leaky_relu", "gelu", "gelu", "gelu_tanh", "gelu_tanh",
                              "silu", "silu", "hardswish", "sigmoid", "tanh", "softplus"});
  }

  std::string draw_expression() {
    switch (whole(0, 9)) {
      case 0:
        add("--with", "a=" + decimal(0.5, 2));
        words_.push_back("b=" + decimal(0.3, 1.5));
        return "a * tanh(b * s)";
      case 1:
        return fmt::format("s * sigmoid({} * s)", decimal(0.5, 2));
      case 2:
        return "where(s > 0, s, 0.3 * s) + 0.5 * s";
      case 3:
        return "silu(s) / (1 + abs(q_idx - kv_idx) / (len_q + len_k))";
      case 4: {
        std::vector<std::string> functions;
        for (int64_t head = 0; head < heads_; ++head) functions.push_back(draw_name());
        return fmt::format("{}", fmt::join(functions, "; "));
      }
      case 5:
        bind("a", decimal(0.5, 1.5));
        bind_random("c", "heads");
        if (tensors_.back().find("float16") != std::string::npos) tensors_.back() = "c=randn:heads";
        return "a * silu(s) + c * s";
      case 6:
        bind_random("table", fmt::format("{},{}", chance(0.5) ? "heads" : "1", 128));
        return "silu(s + table[head, clamp(q_idx - kv_idx, 0, 127)])";
      case 7:
        bind_random("bias", chance(0.5) ? "batch,heads,length_q,length_k" : "1,1,length_q,length_k");
        return "gelu(s + bias[batch, head, q_idx, kv_idx])";
      case 8:
        bind_random("u", "tokens_k");
        return "silu(s) * u[kv_row]";
      default:
        bind_times();
        bind_random("bucket", "16,heads");
        return "silu(s + bucket[clamp(floor(log2(1 + abs(time_q[q_row] - time_k[kv_row]))), 0, 15), head])";
    }
  }

  void draw_mask() {
    if (chance(0.4)) return;
    switch (whole(0, 7)) {
      case 0:
      case 1:
        return add("--mask", "causal");
      case 2:
        return add("--mask", "causal-upper-left");
      case 3:
        return add("--mask", fmt::format("window:{},{}", pick<int64_t>({-1, 0, 16, 130}), pick<int64_t>({-1, 0, 40})));
      case 4:
        return add("--mask", "(q_idx * 7 + kv_idx * 3 + head) % 5 < 2");
      case 5:
        return add("--mask", "(kv_idx < 20) | causal()");
      case 6:
        return add("--mask", fmt::format("hstu({}, {}, 8)", whole(0, 20), whole(0, 60)));
      default:
        bind_times();
        return add("--mask", "(abs(time_q[q_row] - time_k[kv_row]) < 30000) | (q_idx // 16 == kv_idx // 16)");
    }
  }

  void draw_scales() {
    if (chance(0.2)) add("--scale", fmt::format("{:.4g}", 0.7 / std::sqrt(static_cast<double>(head_dim_))));
    switch (whole(0, 8)) {
      case 0:
        add("--out-scale", decimal(0.1, 2));
        break;
      case 1:
        add("--out-scale", "1/len_q");
        break;
      case 2:
        add("--out-scale", "1/len_k");
        break;
      case 3: {
        std::vector<std::string> numbers;
        for (std::size_t b = 0; b < lengths_q_.size(); ++b) numbers.push_back(decimal(0.1, 2));
        add("--out-scale", fmt::format("{}", fmt::join(numbers, ",")));
        break;
      }
      case 4:  // --add-query takes no factors of rows
        return add("--out-scale", "rows");
      default:
        break;
    }
    if (form_ != Form::shared_q && head_dim_ == head_dim_v_ && chance(0.15)) words_.emplace_back("--add-query");
  }

  std::mt19937_64 random_;
  TypeName type_;
  DeviceKind kind_;
  std::vector<std::string> words_;
  std::vector<std::string> tensors_;  ///< the values of --tensor
  bool has_times_ = false, is_deterministic_ = false, is_exact_ = false;
  Form form_ = Form::jagged;
  int64_t heads_ = 1, head_dim_ = 1, head_dim_v_ = 1;
  std::vector<int64_t> lengths_q_, lengths_k_;
};

}  // namespace

std::vector<TypeName> types_of(DeviceKind kind) {
  if (kind == DeviceKind::cpu) return {"float32", "float64", "bfloat16", "float16"};
  return {"bfloat16", "float16", "float32", "tf32"};
}

std::vector<std::string> random_problem(uint64_t seed, const TypeName& type, DeviceKind kind) {
  return Drawing(seed, type, kind).options();
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command;
  for (const std::string& word : words) {
    const bool is_plain = word.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              "_-+=.,:/") == std::string::npos;
    command += (command.empty() ? "" : " ") + (is_plain && !word.empty() ? word : "'" + word + "'");
  }
  return command;
}

}  // namespace gdpa::tool
