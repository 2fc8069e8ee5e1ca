// Reads the options of a problem, generates lengths, and describes a problem.
#include "problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <sstream>

#include "command.h"
#include "device.h"

namespace gdpa::tool {
namespace {

const std::map<std::string, DType> dtypes = {
    {"float32", DType::float32},   {"fp32", DType::float32},  {"float64", DType::float64}, {"fp64", DType::float64},
    {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16}, {"float16", DType::float16}, {"fp16", DType::float16},
};

std::vector<std::string> split(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c == ',' || std::isspace(c) != 0; }, ' ');
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Returns the number if the whole text is a number.
template <class Number>
std::optional<Number> parse(const std::string& text) {
  std::istringstream stream(text);
  Number number{};
  if (stream >> number && stream.eof()) return number;
  return std::nullopt;
}

/// Returns the text itself if it is a list of numbers, otherwise the content of the file with this name ("-": standard
/// input). '#' starts a comment.
std::string text_or_file(const std::string& option, const std::string& argument) {
  if (argument != "-" && argument.find_first_not_of("0123456789-, ") == std::string::npos) return argument;
  std::ifstream file;
  if (argument != "-") {
    file.open(argument);
    if (!file) {
      throw UsageError(fmt::format(
          "{} {}: expected lengths such as 3,17,0,5, a file with lengths, or - for standard input; found no such "
          "file",
          option, argument));
    }
  }
  std::istream& stream = argument == "-" ? std::cin : file;
  std::string text;
  for (std::string line; std::getline(stream, line);) text += line.substr(0, line.find('#')) + " ";
  return text;
}

std::vector<int64_t> parse_lengths(const std::string& option, const std::string& argument) {
  std::vector<int64_t> lengths;
  for (const std::string& word : split(text_or_file(option, argument))) {
    const auto length = parse<int64_t>(word);
    if (!length || *length < 0) {
      throw UsageError(fmt::format("{}: expected lengths, whole numbers of 0 or more; got '{}'", option, word));
    }
    lengths.push_back(*length);
  }
  if (lengths.empty()) throw UsageError(fmt::format("{}: expected at least one length; got none", option));
  return lengths;
}

/// Returns number `index` of the generator splitmix64 with `seed`, in [0, 1). The Python benchmark has the same
/// generator, so both use the same lengths.
double uniform(uint64_t seed, uint64_t index) {
  uint64_t z = (seed << 32) + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/// Returns lengths with the mean fill * max_length, spread evenly over the widest range within [0, max_length].
std::vector<int64_t> generate_lengths(int64_t batch, int64_t max_length, double fill, uint64_t seed) {
  const double low = std::max(0.0, 2 * fill - 1) * static_cast<double>(max_length);
  const double high = std::min(1.0, 2 * fill) * static_cast<double>(max_length);
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < batch; ++b) {
    const double u = uniform(seed, static_cast<uint64_t>(b));
    lengths.push_back(static_cast<int64_t>(std::floor(low + u * (high - low) + 0.5)));
  }
  return lengths;
}

/// The given lengths. Each option is read once, because standard input cannot be read again.
struct GivenLengths {
  std::vector<int64_t> q, k;

  explicit GivenLengths(const ProblemOptions& options) {
    if (!options.lengths.empty()) q = k = parse_lengths("--lengths", options.lengths);
    if (!options.lengths_q.empty()) q = parse_lengths("--lengths-q", options.lengths_q);
    if (!options.lengths_k.empty()) k = parse_lengths("--lengths-k", options.lengths_k);
  }

  int64_t batch_or(int64_t generated) const {
    if (!q.empty()) return static_cast<int64_t>(q.size());
    return k.empty() ? generated : static_cast<int64_t>(k.size());
  }
};

struct Side {
  std::vector<int64_t> lengths;
  Form form = Form::jagged;
};

Side shared_side(int64_t batch, int64_t length) {
  return {std::vector<int64_t>(static_cast<std::size_t>(batch), length), Form::shared};
}

Side resolve_queries(const ProblemOptions& options, const GivenLengths& given, int64_t batch) {
  if (options.shared_q > 0) return shared_side(batch, options.shared_q);
  if (!given.q.empty()) return {given.q};
  return {generate_lengths(batch, options.max_length, options.fill, options.seed),
          options.dense ? Form::dense : Form::jagged};
}

Side resolve_keys(const ProblemOptions& options, const GivenLengths& given, const Side& queries, int64_t batch) {
  if (options.shared_k > 0) return shared_side(batch, options.shared_k);
  if (!given.k.empty()) return {given.k};
  const Form form = options.dense ? Form::dense : Form::jagged;
  if (options.max_length_k > 0) {
    return {generate_lengths(batch, options.max_length_k, options.fill_k, options.seed + 1), form};
  }
  if (queries.form != Form::shared) return {queries.lengths, queries.form};
  return {generate_lengths(batch, options.max_length, options.fill, options.seed), form};
}

/// Refuses contradictory options. The library does not see these contradictions.
void check_options(const ProblemOptions& options) {
  const auto refuse_both = [](bool first, bool second, const char* message) {
    if (first && second) throw UsageError(message);
  };
  refuse_both(
      !options.lengths.empty(), !options.lengths_q.empty() || !options.lengths_k.empty(),
      "--lengths sets the lengths of queries and keys: expected either --lengths, or --lengths-q and --lengths-k");
  refuse_both(options.shared_q > 0, !options.lengths.empty() || !options.lengths_q.empty(),
              "--shared-q gives every batch entry the same queries: expected no lengths of queries with it; give the "
              "lengths of the keys by --lengths-k");
  refuse_both(options.shared_k > 0, !options.lengths.empty() || !options.lengths_k.empty(),
              "--shared-k gives every batch entry the same keys: expected no lengths of keys with it; give the lengths "
              "of the queries by --lengths-q");
  refuse_both(options.dense, !options.lengths.empty() || !options.lengths_q.empty() || !options.lengths_k.empty(),
              "--dense gives every batch entry the same length: expected --batch and --max-length with it");
  refuse_both(options.dense, options.fill < 1 || options.fill_k < 1,
              "--dense gives every batch entry the same length: expected --fill 1 with it");
}

DType dtype_of(const ProblemOptions& options) {
  const auto dtype = dtypes.find(options.dtype);
  if (dtype != dtypes.end()) return dtype->second;
  throw UsageError(fmt::format("--dtype: expected float32, float64, bfloat16 or float16; got '{}'", options.dtype));
}

std::map<std::string, double> parse_parameters(const std::vector<std::string>& texts) {
  std::map<std::string, double> parameters;
  for (const std::string& text : texts) {
    for (const std::string& word : split(text)) {
      const auto equals = word.find('=');
      const auto number = equals == std::string::npos ? std::nullopt : parse<double>(word.substr(equals + 1));
      if (!number || equals == 0) {
        throw UsageError(fmt::format("--with: expected name=number, such as a=2; got '{}'", word));
      }
      parameters[word.substr(0, equals)] = *number;
    }
  }
  return parameters;
}

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

/// Returns the parameters whose names are in an expression. The activation also gets the names of neither expression,
/// which it refuses.
std::map<std::string, double> parameters_of(const std::map<std::string, double>& all, const std::string& expression,
                                            const std::string& other, bool takes_unknown) {
  std::map<std::string, double> parameters;
  for (const auto& [name, number] : all) {
    const bool is_unknown = !occurs(name, expression) && !occurs(name, other);
    if (occurs(name, expression) || (takes_unknown && is_unknown)) parameters[name] = number;
  }
  return parameters;
}

constexpr const char* mask_forms =
    "--mask: expected none, causal, causal-upper-left, window:LEFT,RIGHT (-1 has no bound), or a condition such as "
    "\"(kv_idx <= q_idx) & (q_idx - kv_idx < 100)\"";

/// Returns nothing for a text that is a condition.
std::optional<Mask> parse_window(const std::string& text) {
  if (text == "none") return Mask::all();
  if (text == "causal") return Mask::causal();
  if (text == "causal-upper-left") return Mask::causal(Diagonal::upper_left);
  const std::string prefix = "window:";
  if (text.rfind(prefix, 0) != 0) return std::nullopt;
  const auto words = split(text.substr(prefix.size()));
  const auto left = words.size() == 2 ? parse<int64_t>(words[0]) : std::nullopt;
  const auto right = words.size() == 2 ? parse<int64_t>(words[1]) : std::nullopt;
  if (left && right && *left >= -1 && *right >= -1) return Mask::window(*left, *right);
  throw UsageError(fmt::format("{}; got '{}'", mask_forms, text));
}

void parse_mask(const ProblemOptions& options, Problem& problem) {
  if (const std::optional<Mask> window = parse_window(options.mask)) {
    problem.mask = *window;
    return;
  }
  TensorOptions tensors = options.tensors;
  tensors.gradients = "none";
  problem.mask_tensors = parse_tensors(tensors, options.mask, problem);
  try {
    problem.mask_expression.emplace(
        options.mask, parameters_of(parse_parameters(options.with), options.mask, options.activation, false),
        names_of(problem.mask_tensors));
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}; {}", mask_forms, error.what()));
  }
}

void parse_out_scale(const std::string& text, Problem& problem) {
  if (text == "1/len_q") {
    problem.out_scale_kind = OutScale::Kind::reciprocal_length_q;
    return;
  }
  if (text == "1/len_k") {
    problem.out_scale_kind = OutScale::Kind::reciprocal_length_k;
    return;
  }
  problem.out_scale.clear();
  if (text == "rows") {
    // Numbers from .5 to 1 that differ from row to row: the fractional parts of multiples of the golden ratio, in
    // float32, the type that a GPU takes.
    const int64_t rows = problem.form_q == Form::shared ? problem.lengths_q.front() : sum(problem.lengths_q);
    for (int64_t row = 0; row < rows; ++row) {
      const double multiple = 0.6180339887498949 * static_cast<double>(row);
      problem.out_scale.push_back(static_cast<float>(1 - 0.5 * (multiple - std::floor(multiple))));
    }
    problem.out_scale_kind = OutScale::Kind::per_row;
    return;
  }
  for (const std::string& word : split(text)) {
    const auto number = parse<double>(word);
    if (!number) {
      throw UsageError(
          fmt::format("--out-scale: expected a number, 1/len_q, 1/len_k, one number for each batch entry (.5,1,2), or "
                      "rows; got '{}'",
                      word));
    }
    problem.out_scale.push_back(*number);
  }
  if (problem.out_scale.empty()) throw UsageError("--out-scale: expected a number; got none");
  problem.out_scale_kind = problem.out_scale.size() == 1 ? OutScale::Kind::number : OutScale::Kind::per_batch;
}

std::string lengths_text(const std::vector<int64_t>& lengths, Form form) {
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  if (form == Form::shared) return fmt::format("{} shared", lengths.front());
  if (*least == *most) return fmt::format("{} each", *most);
  return fmt::format("{} to {}, {} in all", *least, *most, sum(lengths));
}

/// Returns ", table bfloat16 (4, 4096)" for each tensor.
std::string tensors_text(const std::vector<NamedTensor>& tensors) {
  std::string text;
  for (const NamedTensor& tensor : tensors) {
    text += fmt::format(", {} {} ({})", tensor.name, name(tensor.dtype), fmt::join(tensor.sizes, ", "));
  }
  return text;
}

Json tensors_to_json(const std::vector<NamedTensor>& tensors) {
  Json json = Json::object();
  for (const NamedTensor& tensor : tensors) {
    json[tensor.name] = {{"dtype", name(tensor.dtype)}, {"shape", tensor.sizes}, {"gradient", tensor.wants_gradient}};
  }
  return json;
}

const char* form_name(Form form) { return form == Form::jagged ? "jagged" : form == Form::dense ? "dense" : "shared"; }

}  // namespace

void add_problem_options(CLI::App& parser, ProblemOptions& options) {
  const char* const lengths = "Lengths";
  const std::string one_for_each = "one for each batch entry: 3,17,0,5, a file, or - for standard input";
  parser.add_option("--lengths", options.lengths, "Lengths of queries and of keys, " + one_for_each)->group(lengths);
  parser.add_option("--lengths-q", options.lengths_q, "Lengths of the queries, " + one_for_each)->group(lengths);
  parser.add_option("--lengths-k", options.lengths_k, "Lengths of the keys; default: the lengths of the queries")
      ->group(lengths);
  parser.add_option("--batch", options.batch, "Number of generated batch entries")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(lengths);
  parser.add_option("--max-length", options.max_length, "Longest generated length")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(lengths);
  parser
      .add_option("--max-length-k", options.max_length_k,
                  "Longest generated length of the keys; default: the lengths of the queries")
      ->check(CLI::NonNegativeNumber)
      ->group(lengths);
  parser.add_option("--fill", options.fill, "Mean of the generated lengths divided by --max-length")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(lengths);
  parser.add_option("--fill-k", options.fill_k, "Mean of the generated lengths of the keys divided by --max-length-k")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(lengths);
  parser.add_option("--seed", options.seed, "Seed of the generated lengths and of the data")
      ->check(CLI::Range(uint64_t{0}, uint64_t{0xffffffff}))
      ->capture_default_str()
      ->group(lengths);
  parser.add_flag("--dense", options.dense, "Operands of rank 4 without cumulative lengths")->group(lengths);
  parser.add_option("--shared-q", options.shared_q, "One query operand of N rows for the whole batch (PMA)")
      ->check(CLI::PositiveNumber)
      ->group(lengths);
  parser.add_option("--shared-k", options.shared_k, "One key and value operand of N rows for the whole batch (PFFN)")
      ->check(CLI::PositiveNumber)
      ->group(lengths);

  const char* const shape = "Heads and type";
  parser.add_option("--heads", options.heads, "Number of query heads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(shape);
  parser
      .add_option("--heads-k", options.heads_k,
                  "Number of key and value heads, a divisor of the number of query heads (GQA, MQA)")
      ->check(CLI::PositiveNumber)
      ->group(shape);
  parser.add_option("--head-dim", options.head_dim, "Elements in a head of query and key")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(shape);
  parser.add_option("--head-dim-v", options.head_dim_v, "Elements in a head of value; default: --head-dim")
      ->check(CLI::PositiveNumber)
      ->group(shape);

  const char* const function = "Function";
  parser.add_option("--with", options.with, "Parameters of the expression and of the mask: name=number")
      ->group(function);
  parser
      .add_option("--tensor", options.tensors.values,
                  "Tensors of the expression and of the mask: name=number, name=file.npy, name=randn:SHAPE[:DTYPE], or "
                  "name=times:SHAPE. A size is a number, batch, heads, length_q, length_k, tokens_q or tokens_k")
      ->group(function);
  parser
      .add_option("--tensor-gradients", options.tensors.gradients,
                  "Gradients of tensors that backward computes: all, none, or names (a,b)")
      ->capture_default_str()
      ->group(function);
  parser
      .add_option("--mask", options.mask,
                  "none, causal, causal-upper-left, window:LEFT,RIGHT, or a condition (\"(kv_idx <= q_idx) & (q_idx - "
                  "kv_idx < 100)\")")
      ->capture_default_str()
      ->group(function);
  parser.add_option("--scale", options.scale, "Factor of Q K^T before f; default: 1/sqrt(head_dim)")->group(function);
  parser
      .add_option("--out-scale", options.out_scale,
                  "Factor of O: a number, 1/len_q, 1/len_k, one number for each batch entry (.5,1,2), or rows: a "
                  "number between .5 and 1 for each query")
      ->capture_default_str()
      ->group(function);
  parser.add_option("--accuracy", options.accuracy, "fast or exact; equal on the CPU")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str()
      ->group(function);
  parser
      .add_flag("--allow-tf32", options.allow_tf32,
                "float32 on a GPU: one product of tf32 instead of three, with the precision of tf32")
      ->group(function);
  parser.add_flag("--deterministic", options.deterministic, "The same bits every time; always on the CPU")
      ->group(function);
  parser.add_flag("--add-query", options.add_query, "Add Q to O, and the gradient of O to the gradient of Q")
      ->group(function);
  parser.add_option("--threads", options.threads, "Largest number of threads; 0 means one for each processor")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(function);
}

void add_dtype_option(CLI::App& parser, ProblemOptions& options) {
  parser.add_option("--dtype", options.dtype, "float32, float64, bfloat16, float16 (fp32, fp64, bf16, fp16)")
      ->capture_default_str()
      ->group("Heads and type");
}

void add_activation_option(CLI::App& parser, ProblemOptions& options) {
  parser
      .add_option("--activation", options.activation,
                  "f: a name (gelu, silu, ...) or an expression in s (\"s * sigmoid(1.702 * s)\")")
      ->capture_default_str()
      ->group("Function");
}

void add_one_problem_options(CLI::App& parser, ProblemOptions& options) {
  add_activation_option(parser, options);
  add_problem_options(parser, options);
  add_dtype_option(parser, options);
  add_device_option(parser, options.device);
}

ProblemOptions parse_problem(std::vector<std::string> words) {
  ProblemOptions options;
  CLI::App parser;
  add_one_problem_options(parser, options);
  std::reverse(words.begin(), words.end());  // as CLI11 expects
  parser.parse(words);
  return options;
}

void add_gradients_option(CLI::App& parser, std::string& gradients) {
  parser.add_option("--gradients", gradients, "Gradients of backward: q for dQ, kv for dK and dV, and so on")
      ->option_text("LETTERS=qkv")
      ->group("Function");
}

WantedGradients wanted_gradients(const std::string& letters, const Problem& problem) {
  WantedGradients wanted{false, false, false};
  for (const char letter : letters) {
    bool* const flag = letter == 'q'   ? &wanted.query
                       : letter == 'k' ? &wanted.key
                       : letter == 'v' ? &wanted.value
                                       : nullptr;
    if (flag == nullptr || *flag) {
      throw UsageError(
          fmt::format("--gradients: expected some of the letters q, k and v, each once, got \"{}\"", letters));
    }
    *flag = true;
  }
  if (letters.empty()) throw UsageError("--gradients: expected some of the letters q, k and v, got none");
  for (std::size_t n = 0; n < problem.tensors.size(); ++n) {
    if (problem.tensors[n].wants_gradient) wanted.parameters |= 1U << n;
  }
  return wanted;
}

void add_json_option(CLI::App& parser, JsonOutput& json) {
  parser
      .add_option_function<std::string>(
          "--json",
          [&json](const std::string& path) {
            json.requested = true;
            json.path = path;
          },
          "Write JSON: to a file in addition to the text, or to standard output instead of the text (-, or no name)")
      ->expected(0, 1)
      ->option_text("[FILE]")
      ->group("Output");
}

double Problem::scale_or_default() const { return scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))); }

std::string Problem::mask_text() const {
  if (mask_expression) return mask_expression->text();
  if (mask.keeps_all()) return "none";
  if (mask.left < 0 && mask.right == 0) {
    return mask.diagonal == Diagonal::upper_left ? "causal-upper-left" : "causal";
  }
  return fmt::format("window:{},{}", mask.left, mask.right);
}

int64_t sum(const std::vector<int64_t>& lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

int64_t maximum(const std::vector<int64_t>& lengths) { return *std::max_element(lengths.begin(), lengths.end()); }

Device device_of(const ProblemOptions& options) {
  const int64_t head_dim_v = options.head_dim_v > 0 ? options.head_dim_v : options.head_dim;
  return choose_device(options.device, {dtype_of(options), options.head_dim, head_dim_v});
}

void refuse_unused_tensors(const ProblemOptions& options, std::vector<std::string> activations) {
  if (!parse_window(options.mask)) activations.push_back(options.mask);
  refuse_unused_tensors(options.tensors, activations);
}

Problem resolve(const ProblemOptions& options) {
  check_options(options);
  const GivenLengths given(options);
  const int64_t batch = given.batch_or(options.batch);
  const Side queries = resolve_queries(options, given, batch);
  const Side keys = resolve_keys(options, given, queries, batch);
  if (queries.lengths.size() != keys.lengths.size()) {
    throw UsageError(
        fmt::format("--lengths-q and --lengths-k: expected one length for each batch entry in both; got "
                    "{} of the queries and {} of the keys",
                    queries.lengths.size(), keys.lengths.size()));
  }
  Problem problem;
  problem.lengths_q = queries.lengths;
  problem.lengths_k = keys.lengths;
  problem.form_q = queries.form;
  problem.form_k = keys.form;
  problem.heads_q = options.heads;
  problem.heads_k = options.heads_k > 0 ? options.heads_k : options.heads;
  problem.head_dim = options.head_dim;
  problem.head_dim_v = options.head_dim_v > 0 ? options.head_dim_v : options.head_dim;
  problem.dtype = dtype_of(options);
  problem.tensors = parse_tensors(options.tensors, options.activation, problem);
  problem.activation = Activation(options.activation,
                                  parameters_of(parse_parameters(options.with), options.activation, options.mask, true),
                                  names_of(problem.tensors));
  problem.scale = options.scale;
  parse_out_scale(options.out_scale, problem);
  parse_mask(options, problem);
  problem.accuracy = options.accuracy == "exact" ? Accuracy::exact : Accuracy::fast;
  problem.allow_tf32 = options.allow_tf32;
  problem.deterministic = options.deterministic;
  problem.add_query = options.add_query;
  problem.threads = options.threads;
  problem.device = device_of(options);
  return problem;
}

std::string describe(const Problem& problem) {
  return fmt::format("{} sequence{}, queries {}, keys {}, {} head{}{}, head_dim {}{}, {}, mask {}{}, f(s) = {}{}{}",
                     problem.batch(), problem.batch() == 1 ? "" : "s", lengths_text(problem.lengths_q, problem.form_q),
                     lengths_text(problem.lengths_k, problem.form_k), problem.heads_q, problem.heads_q == 1 ? "" : "s",
                     problem.heads_k == problem.heads_q ? "" : fmt::format(" ({} of key)", problem.heads_k),
                     problem.head_dim,
                     problem.head_dim_v == problem.head_dim ? "" : fmt::format(" ({} of value)", problem.head_dim_v),
                     name(problem.dtype), problem.mask_text(), tensors_text(problem.mask_tensors),
                     problem.activation.text(), tensors_text(problem.tensors), problem.add_query ? ", O + Q" : "");
}

Json to_json(const Problem& problem) {
  return {
      {"lengths_q", problem.lengths_q},
      {"lengths_k", problem.lengths_k},
      {"form_q", form_name(problem.form_q)},
      {"form_k", form_name(problem.form_k)},
      {"H_q", problem.heads_q},
      {"H_k", problem.heads_k},
      {"d", problem.head_dim},
      {"d_v", problem.head_dim_v},
      {"dtype", name(problem.dtype)},
      {"activation", problem.activation.text()},
      {"derivative", problem.activation.derivative_text()},
      {"tensors", tensors_to_json(problem.tensors)},
      {"scale", problem.scale_or_default()},
      {"mask", problem.mask_text()},
      {"mask_tensors", tensors_to_json(problem.mask_tensors)},
      {"accuracy", problem.accuracy == Accuracy::exact ? "exact" : "fast"},
      {"allow_tf32", problem.allow_tf32},
      {"deterministic", problem.deterministic},
      {"add_query", problem.add_query},
      {"threads", problem.threads},
      {"device", describe(problem.device, problem.threads)},
  };
}

}  // namespace gdpa::tool
