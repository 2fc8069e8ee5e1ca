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
#include <initializer_list>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gdpa/gdpa.h"
#include "gradient_layout.h"

namespace {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The gradients that backward computes: of the operands, of the tensors of the call (bit n: tensor n), and of the rows
/// of out_scale. All other gradients are tensors without elements.
const std::string wanted_schema =
    "bool wants_grad_query=True, bool wants_grad_key=True, bool wants_grad_value=True, int wants_grad_parameters=0, "
    "bool wants_grad_out_scale=False";

/// The common arguments of forward, backward and flops, in the order in which Problem reads them.
const std::string problem_schema =
    "Tensor query, Tensor key, Tensor value, Tensor[] parameters, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? kv_of, Tensor? block_table, Tensor? seqused_k, Tensor? output_offsets, "
    "str activation, str[]? parameter_names, float? scale, float out_scale, str out_scale_kind, "
    "Tensor? out_scale_numbers, SymInt window_left, SymInt window_right, str diagonal, "
    "str? mask, str[]? mask_names, str? mask_tiles, bool enable_gqa, str accuracy, bool deterministic, "
    "bool allow_tf32, bool add_query, SymInt output_rows, bool zeroes_output";

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
  const auto entry = std::ranges::find(dtypes(), code, &NamedDType::code);
  return entry == dtypes().end() || !entry->dtype ? 1 : gdpa::size_in_bytes(*entry->dtype);
}

int32_t code_of(gdpa::DType dtype) { return std::ranges::find(dtypes(), dtype, &NamedDType::dtype)->code; }

gdpa::DType dtype_of(std::string_view who, const Tensor& tensor) {
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  const auto entry = std::ranges::find(dtypes(), code, &NamedDType::code);
  const bool is_known = entry != dtypes().end();
  if (is_known && entry->dtype) return *entry->dtype;
  const bool is_offsets = who.starts_with("cu") || who.starts_with("seq_offsets") || who == "kv_of" ||
                          who == "block_table" || who == "seqused_k" || who == "output_offsets";
  const bool is_parameter = who.starts_with("parameter");
  refuse(gdpa::ErrorKind::type, std::string(who) + ": expected dtype " +
                                    (is_offsets     ? "int32 or int64"
                                     : is_parameter ? "float32, bfloat16, float16, int32 or int64"
                                                    : "float32, float64, bfloat16 or float16") +
                                    ", got " + std::string(is_known ? entry->name : "a dtype that gdpa does not know") +
                                    "; convert it");
}

gdpa::Device device_of(const Tensor& tensor) {
  return tensor.is_cpu() ? gdpa::Device{}
                         : gdpa::Device{gdpa::DeviceKind::cuda, static_cast<int>(tensor.get_device_index())};
}

gdpa::MutableTensorView view_of(std::string_view who, const Tensor& tensor) {
  gdpa::MutableTensorView view;
  view.dtype = dtype_of(who, tensor);
  view.device = device_of(tensor);
  const int64_t rank = tensor.dim();
  if (rank > view.max_rank) {
    refuse(gdpa::ErrorKind::value, std::string(who) + ": expected rank " + std::to_string(view.max_rank) +
                                       " at most, got rank " + std::to_string(rank) + "; reshape it");
  }
  view.rank = static_cast<int>(rank);
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
  std::copy_n(sizes, rank, view.sizes.begin());
  std::copy_n(strides, rank, view.strides.begin());
  view.data = tensor.data_ptr();
  return view;
}

std::optional<gdpa::TensorView> view_of(std::string_view who, const OptionalTensor& tensor) {
  if (!tensor) return std::nullopt;
  return view_of(who, *tensor);
}

/// Returns a function of a library that PyTorch has loaded, or null. PyTorch has some functions only with CUDA, or only
/// in later versions.
template <class Function>
Function* find(const char* library, const char* name) {
  void* const loaded = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(loaded, name));
}

/// Returns PyTorch's current stream on the tensor's device.
void* current_stream(const Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
  static const auto ask =
      find<AOTITorchError(int32_t, void**)>("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
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

/// Throws the error of a failed allocation, with the words of PyTorch's own error, because programs search for them.
/// PyTorch tells its error from 2.13 on.
[[noreturn]] void refuse_allocation(int64_t bytes, bool is_on_cpu) {
  static const auto ask = find<const char*()>("libtorch_cpu.so", "torch_exception_get_what_without_backtrace");
  const char* const told = ask == nullptr ? nullptr : ask();
  std::string message = told == nullptr ? "" : told;
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

  /// A missing list of texts is an empty one. It costs less than one.
  template <class T>
  T take() {
    if constexpr (std::is_same_v<T, std::string>) {
      return text_of(take<StringHandle>());
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
      const auto handle = take<std::optional<StringHandle>>();
      return handle ? std::optional(text_of(*handle)) : std::nullopt;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      std::vector<std::string> texts;
      const auto handles = take<std::optional<std::vector<StringHandle>>>();
      for (StringHandle handle : handles.value_or(std::vector<StringHandle>())) texts.push_back(text_of(handle));
      return texts;
    } else {
      return torch::stable::detail::to<T>(*next_++);
    }
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
T one_of(std::string_view who, const std::string& text, std::initializer_list<std::pair<std::string_view, T>> choices) {
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
  Stack& stack;
  Tensor query = stack.take<Tensor>();
  Tensor key = stack.take<Tensor>();
  Tensor value = stack.take<Tensor>();
  /// The tensors of the function, then the tensors of the mask, then the lists of a prepared mask.
  std::vector<Tensor> parameters = stack.take<std::vector<Tensor>>();
  /// Cumulative lengths, or tensors of rank 2 with the begin and the end of each sequence.
  OptionalTensor cu_seqlens_q = stack.take<OptionalTensor>();
  OptionalTensor cu_seqlens_k = stack.take<OptionalTensor>();
  OptionalTensor kv_of = stack.take<OptionalTensor>();
  OptionalTensor block_table = stack.take<OptionalTensor>();
  OptionalTensor seqused_k = stack.take<OptionalTensor>();
  OptionalTensor output_offsets = stack.take<OptionalTensor>();
  std::string activation = stack.take<std::string>();
  std::vector<std::string> parameter_names = stack.take<std::vector<std::string>>();  ///< of the function
  std::optional<double> scale = stack.take<std::optional<double>>();
  double out_scale = stack.take<double>();
  std::string out_scale_kind = stack.take<std::string>();
  /// Of the batch entries, or with the kind "row" of the rows of the query.
  OptionalTensor out_scale_numbers = stack.take<OptionalTensor>();
  int64_t window_left = stack.take<int64_t>();
  int64_t window_right = stack.take<int64_t>();
  std::string diagonal = stack.take<std::string>();                                  ///< of the window
  std::optional<std::string> mask = stack.take<std::optional<std::string>>();        ///< in place of the window
  std::vector<std::string> mask_names = stack.take<std::vector<std::string>>();      ///< of the tensors of the mask
  std::optional<std::string> mask_tiles = stack.take<std::optional<std::string>>();  ///< of a prepared mask
  bool enable_gqa = stack.take<bool>();
  std::string accuracy = stack.take<std::string>();
  bool deterministic = stack.take<bool>();
  bool allow_tf32 = stack.take<bool>();
  bool add_query = stack.take<bool>();
  int64_t output_rows = stack.take<int64_t>();  ///< with output_offsets; -1: as many as without them
  bool zeroes_output = stack.take<bool>();

  gdpa::OutScale output_scale() const {
    if (out_scale_numbers) {
      const auto numbers = view_of("out_scale", *out_scale_numbers);
      return out_scale_kind == "row" ? gdpa::OutScale::of_rows(numbers) : gdpa::OutScale::of_batch(numbers);
    }
    using Kind = gdpa::OutScale::Kind;
    const Kind kind = one_of<Kind>(
        "out_scale", out_scale_kind,
        {{"number", Kind::number}, {"1/len_q", Kind::reciprocal_length_q}, {"1/len_k", Kind::reciprocal_length_k}});
    return {kind, out_scale, {}};
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
    const auto view = view_of("prepared mask", lists);
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
      views.push_back({names[i], view_of("parameter " + names[i], parameters[first + i])});
    }
    return views;
  }

  gdpa::Attention attention() const {
    using gdpa::Accuracy, gdpa::Diagonal;
    check_heads();
    uint32_t threads = 0;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
    const gdpa::Activation function(activation, {}, parameter_names);
    std::optional<gdpa::MaskExpression> condition;
    if (mask) condition = gdpa::MaskExpression(*mask, {}, mask_names);
    check_parameters();
    const bool has_query_gaps = cu_seqlens_q && cu_seqlens_q->dim() == 2;
    const bool has_key_gaps = cu_seqlens_k && cu_seqlens_k->dim() == 2;
    return {
        .query = view_of("query", query),
        .key = view_of("key", key),
        .value = view_of("value", value),
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
        .mask = {window_left, window_right,
                 one_of<Diagonal>("diagonal", diagonal,
                                  {{"bottom_right", Diagonal::bottom_right}, {"upper_left", Diagonal::upper_left}})},
        .mask_expression = condition,
        .mask_parameters = views_of_parameters(parameter_names.size(), mask_names),
        .prepared_mask = prepared_mask(),
        .accuracy = one_of<Accuracy>("accuracy", accuracy, {{"fast", Accuracy::fast}, {"exact", Accuracy::exact}}),
        .deterministic = deterministic,
        .threads = static_cast<int>(threads),
        .stream = current_stream(query),
        .allow_tf32 = allow_tf32,
        .add_query = add_query};
  }
};

/// The arguments of wanted_schema.
gdpa::WantedGradients take_wanted(Stack& stack) {
  return {.query = stack.take<bool>(),
          .key = stack.take<bool>(),
          .value = stack.take<bool>(),
          .parameters = static_cast<uint32_t>(stack.take<int64_t>()),
          .out_scale = stack.take<bool>()};
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
  for (const auto* of_entries : {&attention.block_table, &attention.kv_of, &attention.seq_offsets_k}) {
    if (!*of_entries) continue;
    sizes[0] *= (*of_entries)->sizes[0];
    return sizes;
  }
  if (attention.cu_seqlens_k) {
    sizes[0] *= std::max<int64_t>(attention.cu_seqlens_k->sizes[0] - 1, 0);
  } else if (value.rank == 4) {
    sizes[0] *= value.sizes[0];
  }
  return sizes;
}

Tensor copied_where_needed(const Tensor& tensor) {
  if (!gdpa::needs_copy(view_of("grad_output", tensor))) return tensor;
  Tensor copy = empty_like(tensor);
  TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), tensor.get(), 0));
  return copy;
}

/// Memory of PyTorch's allocator for the accumulators of backward on a GPU, on the device of `like`. It may be freed
/// while the kernels still run, because the next allocation is used on the same stream.
OptionalTensor lend_workspace(gdpa::Workspace& workspace, const Tensor& like, int64_t bytes) {
  if (bytes == 0) return std::nullopt;
  Tensor memory = empty({bytes / gdpa::size_in_bytes(gdpa::DType::int32)}, aoti_torch_dtype_int32(), like);
  workspace = {memory.data_ptr(), bytes};
  return memory;
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

/// Returns the wanted gradients of the tensors of the call, one after the other in one tensor.
std::pair<Tensor, std::vector<gdpa::ParameterGradient>> gradients_of_parameters(const gdpa::Attention& attention,
                                                                                const gdpa::WantedGradients& wanted,
                                                                                const Tensor& query) {
  const gdpa::DType dtype = dtype_of_sums(attention, wanted);
  std::vector<gdpa::ParameterGradient> gradients;
  std::vector<int64_t> begins = {0};
  for (std::size_t i = 0; i < attention.parameters.size(); ++i) {
    if ((wanted.parameters >> i & 1U) == 0) continue;
    const auto& [name, input] = attention.parameters[i];
    gdpa::MutableTensorView view{nullptr, dtype, input.device, input.rank, input.sizes, {}};
    begins.push_back(begins.back() + view.make_row_major());
    gradients.push_back({name, view});
  }
  const Tensor sums = empty({begins.back()}, code_of(dtype), query);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    gradients[i].value.data = static_cast<std::byte*>(sums.data_ptr()) + begins[i] * gdpa::size_in_bytes(dtype);
  }
  return {sums, std::move(gradients)};
}

std::tuple<Tensor> forward(Stack stack) {
  const Problem problem{stack};
  const gdpa::Attention attention = problem.attention();
  const Tensor output = empty(output_sizes(attention, problem.output_rows), problem.query);
  gdpa::forward(attention, view_of("output", output));
  return output;
}

/// Writes the gradients of query, key and value into the given tensors, and returns the gradients of the tensors of the
/// call and of the rows of out_scale. A missing tensor is a gradient that is not wanted. Of `wanted`, only the returned
/// gradients are read.
std::tuple<Tensor, Tensor> compute_gradients(const Problem& problem, const Tensor& given_grad_output,
                                             const std::array<OptionalTensor, 3>& gradients,
                                             const gdpa::WantedGradients& wanted) {
  gdpa::Attention attention = problem.attention();
  const Tensor grad_output = copied_where_needed(given_grad_output);
  const auto gradient_view = [](std::string_view who, const OptionalTensor& gradient) {
    return gradient ? view_of(who, *gradient) : gdpa::MutableTensorView{};
  };
  const auto output_view = view_of("grad_output", grad_output);
  const auto query_view = gradient_view("grad_query", gradients[0]);
  const auto key_view = gradient_view("grad_key", gradients[1]);
  const auto value_view = gradient_view("grad_value", gradients[2]);
  const auto [sums, of_parameters] = gradients_of_parameters(attention, wanted, problem.query);
  OptionalTensor of_rows;
  if (wanted.out_scale && problem.out_scale_numbers) of_rows = empty_like(*problem.out_scale_numbers);
  const auto rows_view = gradient_view("gradient of out_scale", of_rows);
  const int64_t bytes =
      gdpa::workspace_bytes(attention, output_view, query_view, key_view, value_view, of_parameters, rows_view);
  const OptionalTensor workspace = lend_workspace(attention.workspace, problem.query, bytes);
  gdpa::backward(attention, output_view, query_view, key_view, value_view, of_parameters, rows_view);
  return {sums, of_rows ? *of_rows : empty({0}, problem.query)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(Stack stack) {
  const auto grad_output = stack.take<Tensor>();
  const Problem problem{stack};
  const gdpa::WantedGradients wanted = take_wanted(stack);
  const auto gradient_of = [](bool is_wanted, const Tensor& input) {
    return is_wanted ? OptionalTensor(empty_like(input)) : std::nullopt;
  };
  const std::array<OptionalTensor, 3> gradients = {gradient_of(wanted.query, problem.query),
                                                   gradient_of(wanted.key, problem.key),
                                                   gradient_of(wanted.value, problem.value)};
  const auto further = compute_gradients(problem, grad_output, gradients, wanted);
  const auto given = [&](const OptionalTensor& gradient) { return gradient ? *gradient : empty({0}, problem.query); };
  return std::tuple_cat(std::tuple(given(gradients[0]), given(gradients[1]), given(gradients[2])), further);
}

/// backward with gradients in tensors of the caller, such as views of one fused buffer.
std::tuple<Tensor, Tensor> backward_out(Stack stack) {
  const auto grad_output = stack.take<Tensor>();
  const Problem problem{stack};
  const std::array<OptionalTensor, 3> gradients = {stack.take<OptionalTensor>(), stack.take<OptionalTensor>(),
                                                   stack.take<OptionalTensor>()};
  const gdpa::WantedGradients wanted{.parameters = static_cast<uint32_t>(stack.take<int64_t>()),
                                     .out_scale = stack.take<bool>()};
  return compute_gradients(problem, grad_output, gradients, wanted);
}

/// Writes the tile lists of the mask of a call to a new tensor. Returns the tensor, and the text that describes it.
std::tuple<Tensor, std::string> prepare_mask(Stack stack) {
  const Problem problem{stack};
  gdpa::PrepareOptions options;
  options.backward = stack.take<bool>();
  options.wanted = take_wanted(stack);
  const gdpa::Attention attention = problem.attention();
  const int64_t bytes = gdpa::prepared_mask_bytes(attention, options);
  const Tensor lists =
      empty({bytes / gdpa::size_in_bytes(gdpa::DType::int32)}, aoti_torch_dtype_int32(), problem.query);
  const gdpa::PreparedMask mask = gdpa::prepare_mask(attention, lists.data_ptr(), bytes, options);
  return {lists, mask.tiles};
}

/// Returns the multiplications and additions of the products over the scores that the mask keeps.
std::tuple<double> flops(Stack stack) {
  const Problem problem{stack};
  const bool is_backward = stack.take<bool>();
  const gdpa::WantedGradients wanted = take_wanted(stack);
  const auto direction = is_backward ? gdpa::Direction::backward : gdpa::Direction::forward;
  return gdpa::flops(problem.attention(), direction, wanted);
}

/// Compiles the kernels of one direction, or of both at the same time. Returns a line for each kernel,
/// "name\tarchitecture\tcached\tseconds". A Python thread reads and writes three counters during the compilation: the
/// number of finished kernels, the number of all kernels, and a flag that stops the compilation (not 0).
std::tuple<std::string> compile(Stack stack) {
  const Problem problem{stack};
  const auto directions = stack.take<std::string>();  // "forward", "backward" or "both"
  const auto architecture = stack.take<std::string>();
  const auto lengths_text = stack.take<std::string>();
  const auto progress = stack.take<Tensor>();
  const gdpa::WantedGradients wanted = take_wanted(stack);
  const gdpa::Attention attention = problem.attention();
  using gdpa::Lengths;
  const auto lengths = one_of<Lengths>("lengths", lengths_text, {{"any", Lengths::any}, {"these", Lengths::these}});
  const auto report = [counters = static_cast<int64_t*>(progress.data_ptr())](int64_t done, int64_t total) {
    if (done > 0) {
      ++std::atomic_ref(counters[0]);
    } else {
      std::atomic_ref(counters[1]) += total;
    }
    if (std::atomic_ref(counters[2]) != 0) refuse(gdpa::ErrorKind::runtime, "gdpa.warmup: the compilation was stopped");
  };
  std::vector<std::future<std::vector<gdpa::CompiledKernel>>> pending;
  for (const auto& [name, direction] :
       {std::pair("forward", gdpa::Direction::forward), std::pair("backward", gdpa::Direction::backward)}) {
    if (directions != name && directions != "both") continue;
    pending.push_back(gdpa::compile_async(attention, direction, {architecture, lengths, report, wanted}));
  }
  std::string lines;
  for (auto& one : pending) {
    for (const gdpa::CompiledKernel& made : one.get()) {
      lines += made.kernel.name + "\t" + made.kernel.architecture + "\t" + (made.was_cached ? "1" : "0") + "\t" +
               std::to_string(made.seconds) + "\n";
    }
  }
  return lines;
}

/// Returns the canonical text of an activation and of its derivative, or the error.
std::tuple<std::string, std::string> activation(Stack stack) {
  const gdpa::Activation activation(stack.take<std::string>());
  return {activation.text(), activation.derivative_text()};
}

/// Returns what a text contains, as JSON, or the error.
std::tuple<std::string> describe(Stack stack) {
  const auto text = stack.take<std::string>();
  return gdpa::describe(text, stack.take<bool>());
}

// --- norms -----------------------------------------------------------------------------------------------------------

/// The common arguments of norm and norm_backward. The operators of the CPU are in python/gdpa/nn/_norms.py.
const std::string norm_schema =
    "Tensor x, Tensor? weight, Tensor? bias, Tensor? gate, Tensor? residual, bool is_layer, float eps";

/// The owned arguments of norm_schema.
struct NormCall {
  Stack& stack;
  Tensor x = stack.take<Tensor>();
  OptionalTensor weight = stack.take<OptionalTensor>();
  OptionalTensor bias = stack.take<OptionalTensor>();
  OptionalTensor gate = stack.take<OptionalTensor>();
  OptionalTensor residual = stack.take<OptionalTensor>();
  bool is_layer = stack.take<bool>();
  double eps = stack.take<double>();

  gdpa::Norm norm() const {
    return {.x = view_of("x", x),
            .kind = is_layer ? gdpa::Norm::Kind::layer : gdpa::Norm::Kind::rms,
            .eps = eps,
            .weight = view_of("weight", weight),
            .bias = view_of("bias", bias),
            .gate = view_of("gate", gate),
            .residual = view_of("residual", residual),
            .stream = current_stream(x)};
  }
};

std::tuple<Tensor, Tensor> norm(Stack stack) {
  const NormCall call{stack};
  const gdpa::Norm norm = call.norm();
  const Tensor y = empty_like(call.x);
  const Tensor statistics = empty({norm.x.sizes[0], 2}, aoti_torch_dtype_float32(), call.x);
  gdpa::norm(norm, view_of("y", y), view_of("statistics", statistics));
  return {y, statistics};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> norm_backward(Stack stack) {
  const auto given_grad = stack.take<Tensor>();
  const auto statistics = stack.take<Tensor>();
  const NormCall call{stack};
  gdpa::NormGradients views;
  const auto gradient_of = [&](const OptionalTensor& input, gdpa::MutableTensorView& view) {
    const bool is_wanted = stack.take<bool>() && input;
    const Tensor gradient = is_wanted ? empty_like(*input) : empty({0}, call.x);
    if (is_wanted) view = view_of("gradient", gradient);
    return gradient;
  };
  const std::tuple gradients{gradient_of(call.x, views.x), gradient_of(call.weight, views.weight),
                             gradient_of(call.bias, views.bias), gradient_of(call.gate, views.gate)};
  gdpa::Norm norm = call.norm();
  const OptionalTensor workspace = lend_workspace(norm.workspace, call.x, gdpa::norm_workspace_bytes(norm, views));
  const Tensor grad = copied_where_needed(given_grad);
  gdpa::norm_backward(norm, view_of("grad_y", grad), view_of("statistics", statistics), views);
  return gradients;
}

/// The stable ABI passes only the text of an error. python/gdpa/_errors.py parses the kind before the text.
std::string marked(const gdpa::Error& error) {
  static const std::map<gdpa::ErrorKind, std::string> marks = {{gdpa::ErrorKind::value, "[ValueError] "},
                                                               {gdpa::ErrorKind::type, "[TypeError] "},
                                                               {gdpa::ErrorKind::out_of_memory, "[OutOfMemoryError] "},
                                                               {gdpa::ErrorKind::runtime, ""}};
  return marks.at(error.kind()) + error.what();
}

/// Calls an operator with the values on the stack, and replaces them by the results.
template <auto* run>
void boxed(StableIValue* values, uint64_t, uint64_t) {
  try {
    std::apply([&](const auto&... results) { ((*values++ = torch::stable::detail::from(results)), ...); },
               run(Stack(values)));
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
  const auto define = [&](const std::string& schema) { library.def(schema.c_str()); };
  define("forward(" + problem_schema + ") -> Tensor");
  define("backward(Tensor grad_output, " + problem_schema + ", " + wanted_schema +
         ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  define("backward_out(Tensor grad_output, " + problem_schema +
         ", Tensor(a!)? grad_query, Tensor(b!)? grad_key, Tensor(c!)? grad_value, int wants_grad_parameters=0, "
         "bool wants_grad_out_scale=False) -> (Tensor, Tensor)");
  define("flops(" + problem_schema + ", bool is_backward, " + wanted_schema + ") -> float");
  define("compile(" + problem_schema + ", str direction, str architecture, str lengths, Tensor progress, " +
         wanted_schema + ") -> str");
  define("prepare_mask(" + problem_schema + ", bool backward, " + wanted_schema + ") -> (Tensor lists, str tiles)");
  define("activation(str text) -> (str text, str derivative)");
  define("describe(str text, bool is_condition) -> str");
  define("norm(" + norm_schema + ") -> (Tensor, Tensor)");
  define("norm_backward(Tensor grad_y, Tensor statistics, " + norm_schema +
         ", bool wants_x, bool wants_weight, bool wants_bias, bool wants_gate) -> (Tensor, Tensor, Tensor, Tensor)");
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
