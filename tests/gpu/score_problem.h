// ScoreProblem: random operands, tensors of the call, and the score w tanh(s + t), whose w and t read these tensors. It
// computes the results on the GPU, and by the definition in fp64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "definition/problem.h"
#include "device.h"
#include "gdpa/attention.h"
#include "on_device.h"
#include "promise.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {

/// The rows of one side: sequences of a packed operand between rows without a sequence, a dense batch, or one operand
/// for the whole batch.
struct ScoreSide {
  Form form = Form::jagged;
  std::vector<int64_t> lengths;

  static constexpr int64_t rows_before = 3, rows_after = 2;  // of a packed operand

  int64_t rows() const {
    if (form == Form::shared) return lengths[0];
    int64_t sum = form == Form::jagged ? rows_before + rows_after : 0;
    for (const int64_t length : lengths) sum += length;
    return sum;
  }
  /// The first row of an entry among the rows of the operand.
  int64_t first(std::size_t entry) const {
    if (form == Form::shared) return 0;
    int64_t row = form == Form::jagged ? rows_before : 0;
    for (std::size_t i = 0; i < entry; ++i) row += lengths[i];
    return row;
  }
};

struct ScoreTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> sizes;
  std::vector<double> numbers = {};  ///< empty: random

  bool is_floating() const { return dtype != DType::int32 && dtype != DType::int64; }
};

/// w and t at one place, and the elements that they are sums of.
struct ScoreInputs {
  double w = 1, t = 0;
  struct Read {
    std::size_t tensor;
    int64_t element;
    bool is_of_w;
    double factor = 1;  ///< of the element in w or t
  };
  std::vector<Read> reads = {};
};

class ScoreProblem;

/// One test: a score, and the problem that it is computed for.
struct ScoreCase {
  std::string name;
  std::string text;
  std::vector<ScoreTensor> tensors;
  std::function<ScoreInputs(const ScoreProblem&, const Place&)> inputs;
  ScoreSide queries, keys;
  DType dtype = DType::bfloat16;
  int64_t head_dim = 64;
  int64_t heads_q = 2, heads_k = 2;
  Mask mask = {};
  bool deterministic = false;
  WantedGradients wanted = {};
  bool has_rounded_gradients = false;  ///< the gradients of the tensors have their types
};

/// What a call computes: O, dQ, dK, dV and the gradients of the tensors.
struct ScoreResults {
  Strided output, grad_query, grad_key, grad_value;
  std::vector<Strided> grad_tensors;
  std::string forward_reason = {};   ///< of the choice of the kernels
  std::string gradient_kernel = {};  ///< the name of the last kernel that computes some of grad_tensors
  bool stores_terms = false;         ///< backward stores terms in gradients of the tensors' dtypes
};

class ScoreProblem {
 public:
  ScoreProblem(const ScoreCase& of, unsigned seed) : case_(of), random_(seed) {
    query_ = drawn(of.queries, of.heads_q);
    key_ = drawn(of.keys, of.heads_k);
    value_ = drawn(of.keys, of.heads_k);
    grad_output_ = poisoned(of.queries, of.heads_q, is_per_entry);
    grad_output_.fill_normal(random_);
    for (const ScoreTensor& tensor : of.tensors) {
      Strided data = Strided::contiguous(tensor.dtype, tensor.sizes);
      if (tensor.numbers.empty()) {
        data.fill_normal(random_, 0.7);
        numbers_.push_back(data.values());
      } else {
        std::size_t i = 0;
        data.for_each([&](std::byte* at) { store(tensor.dtype, tensor.numbers[i++], at); });
        numbers_.push_back(tensor.numbers);
      }
      tensors_.push_back(std::move(data));
    }
  }

  const ScoreCase& of() const { return case_; }
  int64_t batch() const {
    return static_cast<int64_t>(std::max(case_.queries.lengths.size(), case_.keys.lengths.size()));
  }

  /// The number of an element, at its position among all elements.
  double number(std::size_t tensor, int64_t element) const {
    return numbers_[tensor][static_cast<std::size_t>(element)];
  }

  ScoreResults computed() {
    ScoreResults results = {poisoned(case_.queries, case_.heads_q, is_per_entry),
                            poisoned(case_.queries, case_.heads_q),
                            poisoned(case_.keys, case_.heads_k),
                            poisoned(case_.keys, case_.heads_k),
                            {}};
    OnDevice device(Gpu::get(), 256);
    Attention attention;
    attention.query = device.input(query_);
    attention.key = device.input(key_);
    attention.value = device.input(value_);
    const Strided offsets_q = cumulative(case_.queries), offsets_k = cumulative(case_.keys);
    if (case_.queries.form == Form::jagged) attention.cu_seqlens_q = device.input(offsets_q);
    if (case_.keys.form == Form::jagged) attention.cu_seqlens_k = device.input(offsets_k);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      names.push_back(case_.tensors[i].name);
      attention.parameters.push_back({case_.tensors[i].name, device.input(tensors_[i])});
      const DType of_gradient = case_.has_rounded_gradients ? case_.tensors[i].dtype : DType::float32;
      results.grad_tensors.push_back(Strided::contiguous(of_gradient, case_.tensors[i].sizes));
    }
    attention.activation = Activation(case_.text, {}, names);
    attention.mask = case_.mask;
    attention.deterministic = case_.deterministic;
    attention.stream = Gpu::get().stream();
    std::vector<Strided*> fetched = {&results.output, &results.grad_query, &results.grad_key, &results.grad_value};
    std::vector<ParameterGradient> gradients;
    WantedGradients wanted = case_.wanted;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!case_.tensors[i].is_floating()) continue;
      wanted.parameters |= 1U << i;
      gradients.push_back({case_.tensors[i].name, device.output(results.grad_tensors[i])});
      fetched.push_back(&results.grad_tensors[i]);
    }
    forward(attention, device.output(results.output));
    const auto gradient = [&](bool is_wanted, Strided& result) {
      return is_wanted ? device.output(result) : MutableTensorView{};
    };
    const MutableTensorView grad_query = gradient(case_.wanted.query, results.grad_query),
                            grad_key = gradient(case_.wanted.key, results.grad_key),
                            grad_value = gradient(case_.wanted.value, results.grad_value);
    const TensorView grad_output = device.input(grad_output_);
    attention.workspace =
        device.workspace(workspace_bytes(attention, grad_output, grad_query, grad_key, grad_value, gradients));
    backward(attention, grad_output, grad_query, grad_key, grad_value, gradients);
    device.fetch(fetched);
    results.forward_reason = explain(attention, Direction::forward).reason;
    for (const GpuKernel& kernel : explain(attention, Direction::backward, "", wanted).kernels) {
      const auto is = [&](const char* kind) { return kernel.name.find(kind) != std::string::npos; };
      const bool is_of_gradients = is("parameter_gradients") || (results.gradient_kernel.empty() && is(": backward "));
      if (is_of_gradients) results.gradient_kernel = kernel.name;
      results.stores_terms = results.stores_terms || is("complete_terms");
    }
    return results;
  }

  /// Compares the results with the definition.
  void expect_near(ScoreResults& results) {
    Reference reference = this->reference();
    const Dense grad = dense(grad_output_, case_.heads_q);
    const Dense output = reference_output(reference);
    const ReferenceGradients exact = reference_gradients(reference, grad);
    if (size_in_bytes(case_.dtype) == 2) {
      reference.round_operand = reference.round_product = [this](double x) { return rounded(case_.dtype, x); };
    }
    const ReferenceGradients same_type = reference_gradients(reference, grad);
    const Judge judge(case_.dtype, Products::of_type);
    judge.expect_near(results.output, output, reference_output(reference), rows_of(case_.queries, is_per_entry), "O");
    const auto expect = [&](bool is_wanted, Strided& result, const Dense& of_fp64, const Dense& of_type, Range rows,
                            const char* what) {
      if (is_wanted) {
        judge.expect_near(result, of_fp64, of_type, rows, what);
      } else {
        EXPECT_TRUE(result.is_poisoned()) << what;
      }
    };
    expect(case_.wanted.query, results.grad_query, exact.query, same_type.query, rows_of(case_.queries), "dQ");
    expect(case_.wanted.key, results.grad_key, exact.key, same_type.key, rows_of(case_.keys), "dK");
    expect(case_.wanted.value, results.grad_value, exact.value, same_type.value, rows_of(case_.keys), "dV");
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!case_.tensors[i].is_floating()) continue;
      judge.expect_near(results.grad_tensors[i], exact.tensors[i], same_type.tensors[i], exact.squares[i],
                        "gradient of " + case_.tensors[i].name);
    }
  }

 private:
  enum PerEntry : bool { is_shared_too, is_per_entry };

  static void store(DType dtype, double number, std::byte* at) {
    const auto wide = static_cast<int64_t>(number);
    const auto narrow = static_cast<int32_t>(number);
    if (dtype == DType::int64) {
      std::memcpy(at, &wide, sizeof wide);
    } else if (dtype == DType::int32) {
      std::memcpy(at, &narrow, sizeof narrow);
    } else if (std::isnan(number)) {
      std::memset(at, 0xff, static_cast<std::size_t>(size_in_bytes(dtype)));
    } else {
      from_double(dtype, number, at);
    }
  }

  /// Poisoned rows of one side. Results of a shared query have rows of their own for each entry.
  Strided poisoned(const ScoreSide& side, int64_t heads, PerEntry per_entry = is_shared_too) const {
    const int64_t entries = batch();
    if (side.form == Form::dense || (side.form == Form::shared && per_entry)) {
      return Strided::contiguous(case_.dtype, {entries, side.lengths[0], heads, case_.head_dim});
    }
    return Strided::contiguous(case_.dtype, {side.rows(), heads, case_.head_dim});
  }
  Strided drawn(const ScoreSide& side, int64_t heads) {
    Strided operand = poisoned(side, heads);
    operand.fill_normal(random_);
    return operand;
  }
  Range rows_of(const ScoreSide& side, PerEntry per_entry = is_shared_too) const {
    if (side.form == Form::jagged) return {ScoreSide::rows_before, side.rows() - ScoreSide::rows_after};
    return {0, side.form == Form::shared && per_entry ? batch() * side.rows() : side.rows()};
  }

  Strided cumulative(const ScoreSide& side) const {
    Strided offsets = Strided::contiguous(DType::int64, {batch() + 1});
    std::size_t entry = 0;
    offsets.for_each([&](std::byte* at) {
      const int64_t row = side.form == Form::jagged ? side.first(entry++) : 0;
      std::memcpy(at, &row, sizeof row);
    });
    return offsets;
  }

  Dense dense(Strided& tensor, int64_t heads) const {
    std::vector<double> values = tensor.values();
    const auto rows = static_cast<int64_t>(values.size()) / (heads * case_.head_dim);
    return {rows, heads, case_.head_dim, std::move(values)};
  }

  Reference reference() {
    Reference reference;
    reference.query = dense(query_, case_.heads_q);
    reference.key = dense(key_, case_.heads_k);
    reference.value = dense(value_, case_.heads_k);
    const auto length = [](const ScoreSide& side, std::size_t entry) {
      return side.form == Form::shared ? side.lengths[0] : side.lengths[entry];
    };
    for (std::size_t b = 0; b < static_cast<std::size_t>(batch()); ++b) {
      Entry entry{case_.queries.first(b), case_.queries.first(b), case_.keys.first(b), length(case_.queries, b),
                  length(case_.keys, b)};
      if (case_.queries.form == Form::shared) entry.output_begin = static_cast<int64_t>(b) * entry.length_q;
      reference.entries.push_back(entry);
    }
    reference.output_rows = case_.queries.rows() * (case_.queries.form == Form::shared ? batch() : 1);
    reference.scale = 1 / std::sqrt(static_cast<double>(case_.head_dim));
    reference.left = case_.mask.left;
    reference.right = case_.mask.right;
    const auto slope = [](double x) { return 1 - std::tanh(x) * std::tanh(x); };
    reference.function_at = [=, this](double s, const Place& place) {
      const ScoreInputs in = case_.inputs(*this, place);
      return in.w * std::tanh(s + in.t);
    };
    reference.derivative_at = [=, this](double s, const Place& place) {
      const ScoreInputs in = case_.inputs(*this, place);
      return in.w * slope(s + in.t);
    };
    reference.add_gradients_at = [=, this](double s, const Place& place, double dp, ReferenceGradients& gradients) {
      if (gradients.tensors.empty()) {
        for (const std::vector<double>& numbers : numbers_) gradients.tensors.emplace_back(numbers.size());
        gradients.squares.resize(numbers_.size());
      }
      const ScoreInputs in = case_.inputs(*this, place);
      for (const ScoreInputs::Read& read : in.reads) {
        const double term = dp * read.factor * (read.is_of_w ? std::tanh(s + in.t) : in.w * slope(s + in.t));
        gradients.tensors[read.tensor][static_cast<std::size_t>(read.element)] += term;
        gradients.squares[read.tensor] += term * term;
      }
    };
    return reference;
  }

  const ScoreCase& case_;
  std::mt19937_64 random_;
  Strided query_, key_, value_, grad_output_;
  std::vector<Strided> tensors_;
  std::vector<std::vector<double>> numbers_;
};

}  // namespace gdpa::test
