// The PyTorch operators gdpa::forward, gdpa::backward and gdpa::norm, and further operators for the Python package.
// They use LibTorch's stable ABI, so one build loads into every torch from 2.10 on. This file only converts tensors to
// views, and gdpa::Error to a message with a kind that Python can parse. The library checks the arguments.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gdpa/gdpa.h"
#include "gradient_layout.h"

namespace {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The gradients that backward computes: of the operands, of the tensors of the call (bit n: tensor n), and of the rows
/// of out_scale. All other gradients are tensors without elements.
constexpr std::string_view wanted_schema =
    "bool wants_grad_query=True, bool wants_grad_key=True, bool wants_grad_value=True, int wants_grad_parameters=0, "
    "bool wants_grad_out_scale=False";

/// The common arguments of forward, backward and flops, in the order in which Problem reads them.
constexpr std::string_view problem_schema =
    "Tensor query, Tensor key, Tensor value, Tensor[] parameters, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? kv_of, Tensor? block_table, Tensor? seqused_k, Tensor? output_offsets, "
    "str activation, str[]? parameter_names, float? scale, float out_scale, str out_scale_kind, "
    "Tensor? out_scale_numbers, SymInt window_left, SymInt window_right, str diagonal, "
    "str? mask, str[]? mask_names, str? mask_tiles, bool enable_gqa, str accuracy, bool deterministic, bool "
    "allow_tf32, "
    "bool add_query, SymInt output_rows, bool zeroes_output";

[[noreturn]] void refuse(gdpa::ErrorKind kind, const std::string& message) { throw gdpa::Error(kind, message); }

struct NamedDType {
  int32_t code;
  std::string_view name;
  std::optional<gdpa::DType> dtype;  // none: gdpa does not support the dtype
};

const std::vector<NamedDType>& dtypes() {
  static const std::vector<NamedDType> table = {
      {aoti_torch_dtype_float32(), "float32", gdpa::DType::float32},
      {aoti_torch_dtype_bfloat16(), "bfloat16", gdpa::DType::bfloat16},
      {aoti_torch_dtype_float16(), "float16", gdpa::DType::float16},
      {aoti_torch_dtype_float64(), "float64", gdpa::DType::float64},
      {aoti_torch_dtype_int64(), "int64", gdpa::DType::int64},
      {aoti_torch_dtype_int32(), "int32", gdpa::DType::int32},
      {aoti_torch_dtype_int16(), "int16", {}},
      {aoti_torch_dtype_int8(), "int8", {}},
      {aoti_torch_dtype_uint8(), "uint8", {}},
      {aoti_torch_dtype_bool(), "bool", {}},
      {aoti_torch_dtype_complex64(), "complex64", {}},
      {aoti_torch_dtype_complex128(), "complex128", {}},
      {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn", {}},
      {aoti_torch_dtype_float8_e5m2(), "float8_e5m2", {}},
  };
  return table;
}

/// Returns the bytes of an element of a dtype that gdpa supports.
int64_t size_of(int32_t code) {
  for (const NamedDType& entry : dtypes()) {
    if (entry.code == code && entry.dtype) return gdpa::size_in_bytes(*entry.dtype);
  }
  return 1;
}

int32_t code_of(gdpa::DType dtype) {
  const std::vector<NamedDType>& all = dtypes();
  return std::find_if(all.begin(), all.end(), [&](const NamedDType& entry) { return entry.dtype == dtype; })->code;
}

gdpa::DType dtype_of(std::string_view who, const Tensor& tensor) {
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  std::string_view came = "a dtype that gdpa does not know";
  for (const NamedDType& entry : dtypes()) {
    if (entry.code != code) continue;
    if (entry.dtype) return *entry.dtype;
    came = entry.name;
  }
  const bool is_offsets = who.starts_with("cu") || who.starts_with("seq_offsets") || who == "kv_of" ||
                          who == "block_table" || who == "seqused_k" || who == "output_offsets";
  const bool is_parameter = who.starts_with("parameter");
  refuse(gdpa::ErrorKind::type, std::string(who) + ": expected dtype " +
                                    (is_offsets     ? "int32 or int64"
                                     : is_parameter ? "float32, bfloat16, float16, int32 or int64"
                                                    : "float32, float64, bfloat16 or float16") +
                                    ", got " + std::string(came) + "; convert it");
}

gdpa::Device device_of(const Tensor& tensor) {
  return tensor.is_cpu() ? gdpa::Device{}
                         : gdpa::Device{gdpa::DeviceKind::cuda, static_cast<int>(tensor.get_device_index())};
}

template <class View>
View view_of(std::string_view who, const Tensor& tensor) {
  View view;
  view.dtype = dtype_of(who, tensor);
  view.device = device_of(tensor);
  const int64_t rank = tensor.dim();
  if (rank > View::max_rank) {
    refuse(gdpa::ErrorKind::value, std::string(who) + ": expected rank " + std::to_string(View::max_rank) +
                                       " at most, got rank " + std::to_string(rank) + "; reshape it");
  }
  view.rank = static_cast<int>(rank);
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    view.sizes[i] = sizes[i];
    view.strides[i] = strides[i];
  }
  view.data = tensor.data_ptr();
  return view;
}

std::optional<gdpa::TensorView> view_of(std::string_view who, const OptionalTensor& tensor) {
  if (!tensor) return std::nullopt;
  return view_of<gdpa::TensorView>(who, *tensor);
}

/// Returns PyTorch's current stream on the tensor's device. The function is looked up at run time, because a PyTorch
/// without CUDA does not have it.
void* current_stream(const Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
  using CurrentStream = AOTITorchError (*)(int32_t, void**);
  static const auto ask = [] {
    void* library = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr
                              : reinterpret_cast<CurrentStream>(::dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (ask == nullptr) {
    refuse(
        gdpa::ErrorKind::runtime,
        "query: expected a PyTorch that tells its current CUDA stream, got one that does not; install PyTorch 2.10 or "
        "later with CUDA");
  }
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(ask(tensor.get_device_index(), &stream));
  return stream;
}

/// Returns PyTorch's message of the last error of this thread, or an empty text before PyTorch 2.13.
std::string torch_message() {
  static const auto ask = [] {
    void* library = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<const char* (*)()>(::dlsym(library, "torch_exception_get_what_without_backtrace"));
  }();
  const char* message = ask == nullptr ? nullptr : ask();
  return message == nullptr ? "" : message;
}

/// Throws the error of a failed allocation, with the words of PyTorch's own error, because programs search for them.
[[noreturn]] void refuse_allocation(int64_t bytes, bool is_on_cpu) {
  std::string message = torch_message();
  const bool is_unknown = message.empty();
  if (is_unknown) {
    message = (is_on_cpu ? "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                         : "CUDA out of memory. Tried to allocate ") +
              std::to_string(bytes) + " bytes.";
  }
  const bool is_memory = !is_on_cpu && (is_unknown || message.find("out of memory") != std::string::npos);
  refuse(is_memory ? gdpa::ErrorKind::out_of_memory : gdpa::ErrorKind::runtime, message);
}

/// Returns a row-major, uninitialised tensor with the device of `like`.
Tensor empty(const std::vector<int64_t>& sizes, int32_t dtype, const Tensor& like) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * (sizes[i] > 0 ? sizes[i] : 1);
  int32_t device_type = 0;
  int32_t device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  const auto failed = aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                                               device_type, device_index, &handle);
  if (failed != 0) {
    const int64_t elements = sizes.empty() ? 1 : strides[0] * sizes[0];
    refuse_allocation(elements * size_of(dtype), like.is_cpu());
  }
  return Tensor(handle);
}

/// Returns a row-major, uninitialised tensor with the dtype and the device of `like`.
Tensor empty(const std::vector<int64_t>& sizes, const Tensor& like) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return empty(sizes, dtype, like);
}

Tensor empty_like(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return empty({sizes.begin(), sizes.end()}, tensor);
}

/// Takes values off the stack of a call, from the front. It reads texts without the conversion in the headers of torch
/// 2.10 and 2.11, which leaks the string.
class Stack {
 public:
  explicit Stack(StableIValue* values) : next_(values) {}

  template <class T>
  T take() {
    return torch::stable::detail::to<T>(*next_++);
  }

  std::string take_text() { return text_of(take<StringHandle>()); }

  std::optional<std::string> take_optional_text() {
    const auto handle = take<std::optional<StringHandle>>();
    return handle ? std::optional(text_of(*handle)) : std::nullopt;
  }

  /// None is an empty list. It costs less than one.
  std::vector<std::string> take_texts() {
    std::vector<std::string> texts;
    const auto handles = take<std::optional<std::vector<StringHandle>>>();
    for (StringHandle handle : handles.value_or(std::vector<StringHandle>())) texts.push_back(text_of(handle));
    return texts;
  }

 private:
  /// Takes the string itself as well.
  static std::string text_of(StringHandle handle) {
    const char* data = nullptr;
    std::size_t length = 0;
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    std::string text(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return text;
  }

  StableIValue* next_;
};

template <class T>
T one_of(std::string_view who, const std::string& text, const std::vector<std::pair<std::string_view, T>>& choices) {
  std::string expected;
  for (const auto& [name, choice] : choices) {
    if (text == name) return choice;
    expected += (expected.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  }
  refuse(gdpa::ErrorKind::value,
         std::string(who) + ": expected one of " + expected + ", got \"" + text + "\"; correct the name");
}

/// The owned arguments of problem_schema. All arguments are taken before an error can occur, so none leaks.
struct Problem {
  explicit Problem(Stack& stack)
      : query(stack.take<Tensor>()),
        key(stack.take<Tensor>()),
        value(stack.take<Tensor>()),
        parameters(stack.take<std::vector<Tensor>>()),
        cu_seqlens_q(stack.take<OptionalTensor>()),
        cu_seqlens_k(stack.take<OptionalTensor>()),
        kv_of(stack.take<OptionalTensor>()),
        block_table(stack.take<OptionalTensor>()),
        seqused_k(stack.take<OptionalTensor>()),
        output_offsets(stack.take<OptionalTensor>()),
        activation(stack.take_text()),
        parameter_names(stack.take_texts()),
        scale(stack.take<std::optional<double>>()),
        out_scale(stack.take<double>()),
        out_scale_kind(stack.take_text()),
        out_scale_numbers(stack.take<OptionalTensor>()),
        window_left(stack.take<int64_t>()),
        window_right(stack.take<int64_t>()),
        diagonal(stack.take_text()),
        mask(stack.take_optional_text()),
        mask_names(stack.take_texts()),
        mask_tiles(stack.take_optional_text()),
        enable_gqa(stack.take<bool>()),
        accuracy(stack.take_text()),
        deterministic(stack.take<bool>()),
        allow_tf32(stack.take<bool>()),
        add_query(stack.take<bool>()),
        output_rows(stack.take<int64_t>()),
        zeroes_output(stack.take<bool>()) {}

  Tensor query, key, value;
  /// The tensors of the function, then the tensors of the mask, then the lists of a prepared mask.
  std::vector<Tensor> parameters;
  /// Cumulative lengths, or tensors of rank 2 with the begin and the end of each sequence.
  OptionalTensor cu_seqlens_q, cu_seqlens_k;
  OptionalTensor kv_of, block_table, seqused_k, output_offsets;
  std::string activation;
  std::vector<std::string> parameter_names;  ///< of the tensors of the function
  std::optional<double> scale;
  double out_scale;
  std::string out_scale_kind;
  OptionalTensor out_scale_numbers;  ///< of the batch entries, or with the kind "row" of the rows of the query
  int64_t window_left, window_right;
  std::string diagonal;                   ///< of the window
  std::optional<std::string> mask;        ///< a condition, in place of the window
  std::vector<std::string> mask_names;    ///< of the tensors of the mask
  std::optional<std::string> mask_tiles;  ///< gdpa::PreparedMask::tiles of a prepared mask
  bool enable_gqa;
  std::string accuracy;
  bool deterministic;
  bool allow_tf32;
  bool add_query;
  int64_t output_rows;  ///< with output_offsets; -1: as many as without them
  bool zeroes_output;

  gdpa::OutScale output_scale() const {
    using Kind = gdpa::OutScale::Kind;
    static const std::vector<std::pair<std::string_view, Kind>> kinds = {
        {"number", Kind::number}, {"1/len_q", Kind::reciprocal_length_q}, {"1/len_k", Kind::reciprocal_length_k}};
    if (out_scale_numbers) {
      const auto numbers = view_of<gdpa::TensorView>("out_scale", *out_scale_numbers);
      return out_scale_kind == "row" ? gdpa::OutScale::of_rows(numbers) : gdpa::OutScale::of_batch(numbers);
    }
    return {one_of("out_scale", out_scale_kind, kinds), out_scale, {}};
  }

  /// gdpa::forward accepts any multiple. PyTorch's functions require an explicit flag.
  void check_heads() const {
    if (enable_gqa || query.dim() < 3 || key.dim() < 3) return;
    const int64_t heads_q = query.size(query.dim() - 2);
    const int64_t heads_k = key.size(key.dim() - 2);
    if (heads_q != heads_k) {
      refuse(gdpa::ErrorKind::value, "query: expected " + std::to_string(heads_k) + " heads, as the key's, got " +
                                         std::to_string(heads_q) +
                                         "; pass enable_gqa=True for key heads that several query heads share");
    }
  }

  /// The prepared mask: its lists are the last of `parameters`.
  std::optional<gdpa::PreparedMask> prepared_mask() const {
    if (!mask_tiles) return std::nullopt;
    const Tensor& lists = parameters.back();
    const auto view = view_of<gdpa::TensorView>("prepared mask", lists);
    return gdpa::PreparedMask{lists.data_ptr(), lists.numel() * gdpa::size_in_bytes(view.dtype), *mask_tiles};
  }

  void check_parameters() const {
    const std::size_t names = parameter_names.size() + mask_names.size() + (mask_tiles ? 1 : 0);
    if (parameters.size() == names) return;
    refuse(gdpa::ErrorKind::value, "parameters: expected " + std::to_string(names) +
                                       " tensors, one for each name, got " + std::to_string(parameters.size()) +
                                       "; name each tensor");
  }

  /// The tensors of the call from number `first` on, with their names.
  std::vector<gdpa::Parameter> views_of_parameters(std::size_t first, const std::vector<std::string>& names) const {
    std::vector<gdpa::Parameter> views;
    for (std::size_t i = 0; i < names.size(); ++i) {
      views.push_back({names[i], view_of<gdpa::TensorView>("parameter " + names[i], parameters[first + i])});
    }
    return views;
  }

  gdpa::Attention attention() const {
    static const std::vector<std::pair<std::string_view, gdpa::Diagonal>> diagonals = {
        {"bottom_right", gdpa::Diagonal::bottom_right}, {"upper_left", gdpa::Diagonal::upper_left}};
    static const std::vector<std::pair<std::string_view, gdpa::Accuracy>> accuracies = {
        {"fast", gdpa::Accuracy::fast}, {"exact", gdpa::Accuracy::exact}};
    check_heads();
    uint32_t threads = 0;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
    const gdpa::Activation function(activation, {}, parameter_names);
    std::optional<gdpa::MaskExpression> condition;
    if (mask) condition = gdpa::MaskExpression(*mask, {}, mask_names);
    check_parameters();
    const bool has_query_gaps = cu_seqlens_q && cu_seqlens_q->dim() == 2;
    const bool has_key_gaps = cu_seqlens_k && cu_seqlens_k->dim() == 2;
    return {.query = view_of<gdpa::TensorView>("query", query),
            .key = view_of<gdpa::TensorView>("key", key),
            .value = view_of<gdpa::TensorView>("value", value),
            .cu_seqlens_q = has_query_gaps ? std::nullopt : view_of("cu_seqlens_q", cu_seqlens_q),
            .cu_seqlens_k = has_key_gaps ? std::nullopt : view_of("cu_seqlens_k", cu_seqlens_k),
            .seq_offsets_q = has_query_gaps ? view_of("seq_offsets_q", cu_seqlens_q) : std::nullopt,
            .seq_offsets_k = has_key_gaps ? view_of("seq_offsets_k", cu_seqlens_k) : std::nullopt,
            .kv_of = view_of("kv_of", kv_of),
            .block_table = view_of("block_table", block_table),
            .seqused_k = view_of("seqused_k", seqused_k),
            .output_offsets = view_of("output_offsets", output_offsets),
            .zeroes_output = zeroes_output,
            .activation = function,
            .parameters = views_of_parameters(0, parameter_names),
            .scale = scale,
            .out_scale = output_scale(),
            .mask = {window_left, window_right, one_of("diagonal", diagonal, diagonals)},
            .mask_expression = condition,
            .mask_parameters = views_of_parameters(parameter_names.size(), mask_names),
            .prepared_mask = prepared_mask(),
            .accuracy = one_of("accuracy", accuracy, accuracies),
            .deterministic = deterministic,
            .threads = static_cast<int>(threads),
            .stream = current_stream(query),
            .allow_tf32 = allow_tf32,
            .add_query = add_query};
  }
};

/// The arguments of wanted_schema.
gdpa::WantedGradients take_wanted(Stack& stack) {
  gdpa::WantedGradients wanted;
  wanted.query = stack.take<bool>();
  wanted.key = stack.take<bool>();
  wanted.value = stack.take<bool>();
  wanted.parameters = static_cast<uint32_t>(stack.take<int64_t>());
  wanted.out_scale = stack.take<bool>();
  return wanted;
}

/// Returns the shape of the output: the shape of query with the head_dim of value. A shared query has its rows once for
/// each batch entry. With output_offsets, the output may have `rows` rows of its own. If ranks are wrong, any shape is
/// sufficient, because gdpa::forward checks the inputs before the output.
std::vector<int64_t> output_sizes(const gdpa::Attention& attention, int64_t rows) {
  const gdpa::TensorView& query = attention.query;
  const gdpa::TensorView& value = attention.value;
  if (query.rank < 3 || value.rank < 3) return {0, 1, 1};
  std::vector<int64_t> sizes(query.sizes.begin(), query.sizes.begin() + query.rank);
  sizes.back() = value.sizes[static_cast<std::size_t>(value.rank - 1)];
  if (rows >= 0) {
    sizes[0] = rows;
    return sizes;
  }
  const bool is_shared = query.rank == 3 && !attention.cu_seqlens_q && !attention.seq_offsets_q;
  if (!is_shared) return sizes;
  if (attention.block_table) {
    sizes[0] *= attention.block_table->sizes[0];
  } else if (attention.kv_of) {
    sizes[0] *= attention.kv_of->sizes[0];
  } else if (attention.cu_seqlens_k) {
    sizes[0] *= std::max<int64_t>(attention.cu_seqlens_k->sizes[0] - 1, 0);
  } else if (attention.seq_offsets_k) {
    sizes[0] *= attention.seq_offsets_k->sizes[0];
  } else if (value.rank == 4) {
    sizes[0] *= value.sizes[0];
  }
  return sizes;
}

Tensor copied_where_needed(const Tensor& tensor) {
  if (!gdpa::needs_copy(view_of<gdpa::TensorView>("grad_output", tensor))) return tensor;
  Tensor copy = empty_like(tensor);
  TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

/// Memory of PyTorch's allocator for the accumulators of backward on a GPU. It may be freed while the kernels still
/// run, because the next allocation is used on the same stream.
OptionalTensor lend_workspace(gdpa::Attention& attention, const Tensor& query, int64_t bytes) {
  if (bytes == 0) return std::nullopt;
  Tensor workspace = empty({bytes / gdpa::size_in_bytes(attention.query.dtype)}, query);
  attention.workspace = {workspace.data_ptr(), bytes};
  return workspace;
}

/// Returns the dtype of the wanted gradients of tensors of the call. On a GPU it is the dtype of these tensors, or
/// float32 if they have several. On the CPU it is float64 if the query or any tensor of the call is, otherwise float32.
/// The fake operator (python/gdpa/_operators.py) has the same rule.
gdpa::DType dtype_of_sums(const gdpa::Attention& attention, const gdpa::WantedGradients& wanted) {
  const bool is_on_cpu = attention.query.device.kind == gdpa::DeviceKind::cpu;
  bool has_double = is_on_cpu && attention.query.dtype == gdpa::DType::float64;
  std::set<gdpa::DType> dtypes;
  for (std::size_t i = 0; i < attention.parameters.size(); ++i) {
    const gdpa::DType dtype = attention.parameters[i].value.dtype;
    has_double = has_double || (is_on_cpu && dtype == gdpa::DType::float64);
    if ((wanted.parameters >> i & 1U) != 0) dtypes.insert(dtype);
  }
  if (has_double) return gdpa::DType::float64;
  return is_on_cpu || dtypes.size() != 1 ? gdpa::DType::float32 : *dtypes.begin();
}

/// Returns a row-major view with the shape of the parameter, and its number of elements.
std::pair<gdpa::ParameterGradient, int64_t> row_major_gradient(const gdpa::Parameter& parameter, gdpa::DType dtype) {
  const gdpa::TensorView& input = parameter.value;
  gdpa::MutableTensorView view{nullptr, dtype, input.device, input.rank, input.sizes, {}};
  int64_t stride = 1;
  for (auto i = static_cast<std::size_t>(view.rank); i-- > 0;) {
    view.strides[i] = stride;
    stride *= view.sizes[i];
  }
  return {{parameter.name, view}, stride};
}

/// The wanted gradients of the tensors of the call, one after the other in one tensor.
struct ParameterGradients {
  ParameterGradients(const gdpa::Attention& attention, const gdpa::WantedGradients& wanted, const Tensor& query) {
    const gdpa::DType dtype = dtype_of_sums(attention, wanted);
    std::vector<int64_t> begins;
    int64_t elements = 0;
    for (std::size_t i = 0; i < attention.parameters.size(); ++i) {
      if ((wanted.parameters >> i & 1U) == 0) continue;
      auto [gradient, count] = row_major_gradient(attention.parameters[i], dtype);
      views.push_back(std::move(gradient));
      begins.push_back(elements);
      elements += count;
    }
    sums = empty({elements}, code_of(dtype), query);
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i].value.data = static_cast<std::byte*>(sums->data_ptr()) + begins[i] * gdpa::size_in_bytes(dtype);
    }
  }

  OptionalTensor sums;
  std::vector<gdpa::ParameterGradient> views;
};

void forward(StableIValue* values, Stack stack) {
  const Problem problem(stack);
  const gdpa::Attention attention = problem.attention();
  const Tensor output = empty(output_sizes(attention, problem.output_rows), problem.query);
  gdpa::forward(attention, view_of<gdpa::MutableTensorView>("output", output));
  values[0] = torch::stable::detail::from(output);
}

/// The gradients of the tensors of the call and of the rows of out_scale.
struct FurtherGradients {
  Tensor of_parameters, of_out_scale;
};

/// Writes the gradients of query, key and value into the given tensors, and returns the further ones. A missing tensor
/// is a gradient that is not wanted. Of `wanted`, only the further gradients are read.
FurtherGradients compute_gradients(const Problem& problem, const Tensor& given_grad_output,
                                   const std::array<OptionalTensor, 3>& gradients,
                                   const gdpa::WantedGradients& wanted) {
  gdpa::Attention attention = problem.attention();
  const Tensor grad_output = copied_where_needed(given_grad_output);
  const auto gradient_view = [](std::string_view who, const OptionalTensor& gradient) {
    return gradient ? view_of<gdpa::MutableTensorView>(who, *gradient) : gdpa::MutableTensorView{};
  };
  const auto output_view = view_of<gdpa::TensorView>("grad_output", grad_output);
  const auto query_view = gradient_view("grad_query", gradients[0]);
  const auto key_view = gradient_view("grad_key", gradients[1]);
  const auto value_view = gradient_view("grad_value", gradients[2]);
  const ParameterGradients of_parameters(attention, wanted, problem.query);
  const bool has_rows = wanted.out_scale && problem.out_scale_numbers;
  const Tensor of_rows = has_rows ? empty_like(*problem.out_scale_numbers) : empty({0}, problem.query);
  const auto rows_view =
      has_rows ? view_of<gdpa::MutableTensorView>("gradient of out_scale", of_rows) : gdpa::MutableTensorView{};
  const int64_t bytes =
      gdpa::workspace_bytes(attention, output_view, query_view, key_view, value_view, of_parameters.views, rows_view);
  const OptionalTensor workspace = lend_workspace(attention, problem.query, bytes);
  gdpa::backward(attention, output_view, query_view, key_view, value_view, of_parameters.views, rows_view);
  return {*of_parameters.sums, of_rows};
}

void backward(StableIValue* values, Stack stack) {
  const auto grad_output = stack.take<Tensor>();
  const Problem problem(stack);
  const gdpa::WantedGradients wanted = take_wanted(stack);
  const auto gradient_of = [](bool is_wanted, const Tensor& input) {
    return is_wanted ? OptionalTensor(empty_like(input)) : std::nullopt;
  };
  const std::array<OptionalTensor, 3> gradients = {gradient_of(wanted.query, problem.query),
                                                   gradient_of(wanted.key, problem.key),
                                                   gradient_of(wanted.value, problem.value)};
  const FurtherGradients further = compute_gradients(problem, grad_output, gradients, wanted);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    values[i] = torch::stable::detail::from(gradients[i] ? *gradients[i] : empty({0}, problem.query));
  }
  values[gradients.size()] = torch::stable::detail::from(further.of_parameters);
  values[gradients.size() + 1] = torch::stable::detail::from(further.of_out_scale);
}

/// backward with gradients in tensors of the caller, such as views of one fused buffer.
void backward_out(StableIValue* values, Stack stack) {
  const auto grad_output = stack.take<Tensor>();
  const Problem problem(stack);
  const auto grad_query = stack.take<OptionalTensor>();
  const auto grad_key = stack.take<OptionalTensor>();
  const auto grad_value = stack.take<OptionalTensor>();
  gdpa::WantedGradients wanted;
  wanted.parameters = static_cast<uint32_t>(stack.take<int64_t>());
  wanted.out_scale = stack.take<bool>();
  const FurtherGradients further = compute_gradients(problem, grad_output, {grad_query, grad_key, grad_value}, wanted);
  values[0] = torch::stable::detail::from(further.of_parameters);
  values[1] = torch::stable::detail::from(further.of_out_scale);
}

/// Writes the tile lists of the mask of a call to a new tensor. Returns the tensor, and the text that describes it.
void prepare_mask(StableIValue* values, Stack stack) {
  const Problem problem(stack);
  gdpa::PrepareOptions options;
  options.backward = stack.take<bool>();
  options.wanted = take_wanted(stack);
  const gdpa::Attention attention = problem.attention();
  const int64_t bytes = gdpa::prepared_mask_bytes(attention, options);
  const Tensor lists =
      empty({bytes / gdpa::size_in_bytes(gdpa::DType::int32)}, aoti_torch_dtype_int32(), problem.query);
  const gdpa::PreparedMask mask = gdpa::prepare_mask(attention, lists.data_ptr(), bytes, options);
  values[0] = torch::stable::detail::from(lists);
  values[1] = torch::stable::detail::from(mask.tiles);
}

/// Returns the multiplications and additions of the products over the scores that the mask keeps.
void flops(StableIValue* values, Stack stack) {
  const Problem problem(stack);
  const bool is_backward = stack.take<bool>();
  const gdpa::WantedGradients wanted = take_wanted(stack);
  const auto direction = is_backward ? gdpa::Direction::backward : gdpa::Direction::forward;
  values[0] = torch::stable::detail::from(gdpa::flops(problem.attention(), direction, wanted));
}

/// Counters that a Python thread reads during a compilation in another thread: the number of finished kernels, the
/// number of all kernels, and a flag that stops the compilation (not 0).
class SharedProgress {
 public:
  explicit SharedProgress(const Tensor& tensor) : numbers_(static_cast<int64_t*>(tensor.data_ptr())) {}

  void add(int64_t done, int64_t total) {
    std::atomic_ref(numbers_[0]) += done;
    std::atomic_ref(numbers_[1]) += total;
    if (std::atomic_ref(numbers_[2]) != 0) refuse(gdpa::ErrorKind::runtime, "gdpa.warmup: the compilation was stopped");
  }

 private:
  int64_t* numbers_;
};

/// Compiles the kernels of one direction, or of both at the same time. Returns a line for each kernel,
/// "name\tarchitecture\tcached\tseconds".
void compile(StableIValue* values, Stack stack) {
  static const std::vector<std::pair<std::string_view, gdpa::Lengths>> all_lengths = {{"any", gdpa::Lengths::any},
                                                                                      {"these", gdpa::Lengths::these}};
  const Problem problem(stack);
  const std::string directions = stack.take_text();  // "forward", "backward" or "both"
  const std::string architecture = stack.take_text();
  const std::string lengths_text = stack.take_text();
  const auto progress_tensor = stack.take<Tensor>();
  const gdpa::WantedGradients wanted = take_wanted(stack);
  const gdpa::Attention attention = problem.attention();
  const gdpa::Lengths lengths = one_of("lengths", lengths_text, all_lengths);
  SharedProgress progress(progress_tensor);
  const auto compile_one_way = [&](gdpa::Direction direction) {
    const auto report = [&progress](int64_t done, int64_t total) { progress.add(done > 0, done > 0 ? 0 : total); };
    return gdpa::compile(attention, direction, {architecture, lengths, report, wanted});
  };
  std::vector<std::future<std::vector<gdpa::CompiledKernel>>> pending;
  for (const auto& [name, other] :
       {std::pair("forward", gdpa::Direction::forward), std::pair("backward", gdpa::Direction::backward)}) {
    if (directions == name || directions == "both") {
      pending.push_back(std::async(std::launch::async, compile_one_way, other));
    }
  }
  std::vector<gdpa::CompiledKernel> kernels;
  for (auto& one : pending) {
    for (gdpa::CompiledKernel& kernel : one.get()) kernels.push_back(std::move(kernel));
  }
  std::string lines;
  for (const gdpa::CompiledKernel& made : kernels) {
    lines += made.kernel.name + "\t" + made.kernel.architecture + "\t" + (made.was_cached ? "1" : "0") + "\t" +
             std::to_string(made.seconds) + "\n";
  }
  values[0] = torch::stable::detail::from(lines);
}

/// Returns the canonical text of an activation and of its derivative, or the error.
void activation(StableIValue* values, Stack stack) {
  const gdpa::Activation activation(stack.take_text());
  values[0] = torch::stable::detail::from(activation.text());
  values[1] = torch::stable::detail::from(activation.derivative_text());
}

/// Returns what a text contains, as JSON, or the error.
void describe(StableIValue* values, Stack stack) {
  const std::string text = stack.take_text();
  values[0] = torch::stable::detail::from(gdpa::describe(text, stack.take<bool>()));
}

// --- norms -----------------------------------------------------------------------------------------------------------

/// The common arguments of norm and norm_backward. The operators of the CPU are in python/gdpa/nn/_norms.py.
constexpr std::string_view norm_schema =
    "Tensor x, Tensor? weight, Tensor? bias, Tensor? gate, Tensor? residual, bool is_layer, float eps";

/// The owned arguments of norm_schema.
struct NormCall {
  explicit NormCall(Stack& stack)
      : x(stack.take<Tensor>()),
        weight(stack.take<OptionalTensor>()),
        bias(stack.take<OptionalTensor>()),
        gate(stack.take<OptionalTensor>()),
        residual(stack.take<OptionalTensor>()),
        is_layer(stack.take<bool>()),
        eps(stack.take<double>()) {}

  Tensor x;
  OptionalTensor weight, bias, gate, residual;
  bool is_layer;
  double eps;

  gdpa::Norm norm() const {
    return {.x = view_of<gdpa::TensorView>("x", x),
            .kind = is_layer ? gdpa::Norm::Kind::layer : gdpa::Norm::Kind::rms,
            .eps = eps,
            .weight = view_of("weight", weight),
            .bias = view_of("bias", bias),
            .gate = view_of("gate", gate),
            .residual = view_of("residual", residual),
            .stream = current_stream(x)};
  }
};

void norm(StableIValue* values, Stack stack) {
  const NormCall call(stack);
  const gdpa::Norm norm = call.norm();
  const Tensor y = empty_like(call.x);
  const Tensor statistics = empty({norm.x.sizes[0], 2}, aoti_torch_dtype_float32(), call.x);
  gdpa::norm(norm, view_of<gdpa::MutableTensorView>("y", y),
             view_of<gdpa::MutableTensorView>("statistics", statistics));
  values[0] = torch::stable::detail::from(y);
  values[1] = torch::stable::detail::from(statistics);
}

void norm_backward(StableIValue* values, Stack stack) {
  const auto given_grad = stack.take<Tensor>();
  const auto statistics = stack.take<Tensor>();
  const NormCall call(stack);
  const std::array<const Tensor*, 4> inputs = {&call.x, call.weight ? &*call.weight : nullptr,
                                               call.bias ? &*call.bias : nullptr, call.gate ? &*call.gate : nullptr};
  std::array<gdpa::MutableTensorView, 4> views;
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool is_wanted = stack.take<bool>() && inputs[i] != nullptr;
    gradients.push_back(is_wanted ? empty_like(*inputs[i]) : empty({0}, call.x));
    if (is_wanted) views[i] = view_of<gdpa::MutableTensorView>("gradient", gradients.back());
  }
  gdpa::Norm norm = call.norm();
  const gdpa::NormGradients wanted{views[0], views[1], views[2], views[3]};
  const int64_t bytes = gdpa::norm_workspace_bytes(norm, wanted);
  const Tensor workspace =
      empty({bytes / gdpa::size_in_bytes(gdpa::DType::float32)}, aoti_torch_dtype_float32(), call.x);
  if (bytes > 0) norm.workspace = {workspace.data_ptr(), bytes};
  const Tensor grad = copied_where_needed(given_grad);
  gdpa::norm_backward(norm, view_of<gdpa::TensorView>("grad_y", grad),
                      view_of<gdpa::TensorView>("statistics", statistics), wanted);
  for (std::size_t i = 0; i < gradients.size(); ++i) values[i] = torch::stable::detail::from(gradients[i]);
}

/// The stable ABI passes only the text of an error. python/gdpa/_errors.py parses the kind before the text.
std::string marked(const gdpa::Error& error) {
  switch (error.kind()) {
    case gdpa::ErrorKind::value:
      return std::string("[ValueError] ") + error.what();
    case gdpa::ErrorKind::type:
      return std::string("[TypeError] ") + error.what();
    case gdpa::ErrorKind::out_of_memory:
      return std::string("[OutOfMemoryError] ") + error.what();
    case gdpa::ErrorKind::runtime:
      break;
  }
  return error.what();
}

using Operator = void(StableIValue*, Stack);

template <Operator* run>
void boxed(StableIValue* values, uint64_t, uint64_t) {
  try {
    run(values, Stack(values));
  } catch (const gdpa::Error& error) {
    throw std::runtime_error(marked(error));
  } catch (const std::bad_alloc&) {  // Python would raise a MemoryError, which PyTorch never raises
    throw std::runtime_error("gdpa: the host has too little free memory; take a smaller batch");
  }
}

void implement(torch::stable::detail::StableLibrary& library) {
  library.impl("forward", boxed<forward>);
  library.impl("backward", boxed<backward>);
  library.impl("backward_out", boxed<backward_out>);
  library.impl("flops", boxed<flops>);
  library.impl("compile", boxed<compile>);
  library.impl("prepare_mask", boxed<prepare_mask>);
}

}  // namespace

STABLE_TORCH_LIBRARY(gdpa, library) {
  const std::string problem(problem_schema), wanted(wanted_schema);
  library.def(("forward(" + problem + ") -> Tensor").c_str());
  library.def(
      ("backward(Tensor grad_output, " + problem + ", " + wanted + ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
          .c_str());
  library.def(("backward_out(Tensor grad_output, " + problem +
               ", Tensor(a!)? grad_query, Tensor(b!)? grad_key, Tensor(c!)? grad_value, int wants_grad_parameters=0, "
               "bool wants_grad_out_scale=False) -> (Tensor, Tensor)")
                  .c_str());
  library.def(("flops(" + problem + ", bool is_backward, " + wanted + ") -> float").c_str());
  library.def(
      ("compile(" + problem + ", str direction, str architecture, str lengths, Tensor progress, " + wanted + ") -> str")
          .c_str());
  library.def(("prepare_mask(" + problem + ", bool backward, " + wanted + ") -> (Tensor lists, str tiles)").c_str());
  library.def("activation(str text) -> (str text, str derivative)");
  library.def("describe(str text, bool is_condition) -> str");
  const std::string norm(norm_schema);
  library.def(("norm(" + norm + ") -> (Tensor, Tensor)").c_str());
  library.def(
      ("norm_backward(Tensor grad_y, Tensor statistics, " + norm +
       ", bool wants_x, bool wants_weight, bool wants_bias, bool wants_gate) -> (Tensor, Tensor, Tensor, Tensor)")
          .c_str());
}

STABLE_TORCH_LIBRARY_IMPL(gdpa, CPU, library) { implement(library); }

STABLE_TORCH_LIBRARY_IMPL(gdpa, CUDA, library) {
  implement(library);
  library.impl("norm", boxed<norm>);
  library.impl("norm_backward", boxed<norm_backward>);
}

STABLE_TORCH_LIBRARY_IMPL(gdpa, CompositeExplicitAutograd, library) {
  library.impl("activation", boxed<activation>);
  library.impl("describe", boxed<describe>);
}
