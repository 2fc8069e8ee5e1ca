// A problem of the command line: its options, and the problem that they describe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gdpa/gdpa.h"
#include "tensors.h"
#include "terminal.h"

namespace CLI {
class App;
}

namespace gdpa::tool {

/// The options of the command line, with their defaults. An empty text or a 0 means that the option is missing.
struct ProblemOptions {
  std::string lengths, lengths_q, lengths_k;
  int64_t batch = 8;
  int64_t max_length = 256;
  int64_t max_length_k = 0;
  double fill = 1.0;
  double fill_k = 1.0;
  uint64_t seed = 0;
  bool dense = false;
  int64_t shared_q = 0;
  int64_t shared_k = 0;
  int64_t heads = 4;
  int64_t heads_k = 0;
  int64_t head_dim = 64;
  int64_t head_dim_v = 0;
  std::string dtype = "float32";
  std::string activation = "gelu";
  std::vector<std::string> with;
  TensorOptions tensors;
  std::string mask = "none";
  std::optional<double> scale;
  std::string out_scale = "1";
  std::string accuracy = "fast";
  bool allow_tf32 = false;
  bool deterministic = false;
  bool add_query = false;
  int threads = 0;
  std::string device;
};

/// Adds all options of ProblemOptions except --activation, --dtype and --device. Some commands accept several
/// activations and dtypes.
void add_problem_options(CLI::App& parser, ProblemOptions& options);
void add_dtype_option(CLI::App& parser, ProblemOptions& options);
void add_activation_option(CLI::App& parser, ProblemOptions& options);
void add_json_option(CLI::App& parser, JsonOutput& json);

/// Adds all options of ProblemOptions: those of `gdpa run`.
void add_one_problem_options(CLI::App& parser, ProblemOptions& options);

/// Reads the options of `gdpa run` from words, as the command line does.
ProblemOptions parse_problem(std::vector<std::string> words);

/// Adds --gradients, which names the gradients of the operands that backward computes by the letters q, k and v.
void add_gradients_option(CLI::App& parser, std::string& gradients);

/// Jagged and dense operands have one row for each token. A shared operand has its rows once for the whole batch.
enum class Form { jagged, dense, shared };

/// The problem of the options, with all defaults and all lengths.
struct Problem {
  std::vector<int64_t> lengths_q, lengths_k;  ///< one for each batch entry; all equal for a dense or shared side
  Form form_q = Form::jagged;
  Form form_k = Form::jagged;
  int64_t heads_q = 0;
  int64_t heads_k = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  DType dtype = DType::float32;
  Activation activation = Activation("identity");
  std::vector<NamedTensor> tensors;  ///< in the order of activation.parameters()
  std::optional<double> scale;
  OutScale::Kind out_scale_kind = OutScale::Kind::number;
  std::vector<double> out_scale = {1.0};  ///< one number, or one for each batch entry or each row of the query
  Mask mask;
  std::optional<MaskExpression> mask_expression;  ///< in place of a window
  std::vector<NamedTensor> mask_tensors;          ///< in the order of mask_expression->tensors()
  Accuracy accuracy = Accuracy::fast;
  bool allow_tf32 = false;
  bool deterministic = false;
  bool add_query = false;
  int threads = 0;
  Device device;

  int64_t batch() const { return static_cast<int64_t>(lengths_q.size()); }
  double scale_or_default() const;
  std::string mask_text() const;  ///< "none", "causal", "causal-upper-left", "window:LEFT,RIGHT" or the condition
};

/// Throws UsageError for a tensor that neither the activations nor the mask read.
void refuse_unused_tensors(const ProblemOptions& options, std::vector<std::string> activations);

/// Reads the options. Throws UsageError, or gdpa::Error for a wrong activation.
Problem resolve(const ProblemOptions& options);

/// Returns the device that resolve chooses, without reading lengths, because standard input can be read only once.
Device device_of(const ProblemOptions& options);

/// Returns the gradients of the operands that the letters name, and of the tensors of the problem. Throws UsageError
/// for other letters, a repeated letter, or none.
WantedGradients wanted_gradients(const std::string& letters, const Problem& problem);

int64_t sum(const std::vector<int64_t>& lengths);
int64_t maximum(const std::vector<int64_t>& lengths);

/// A description of the problem as a line of text, and as a JSON object.
std::string describe(const Problem& problem);
Json to_json(const Problem& problem);

}  // namespace gdpa::tool
