// Creates the operands and views of a problem, in each of the four floating-point types.
#include "workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <random>

#include "command.h"
#include "measure.h"

namespace gdpa::tool {
namespace {

// Normal numbers are generated once and repeated. The period is prime, so that two rows of usual lengths differ.
constexpr std::size_t period_of_numbers = 1048573;

uint16_t bfloat16_from(double number) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(number));
  if (std::isnan(number)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

double bfloat16_to_double(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t float16_from(double number) {
  constexpr int least_exponent = -14;
  constexpr int mantissa_bits = 10;
  constexpr double beyond_the_largest = 65520;
  const auto sign = static_cast<uint16_t>(std::signbit(number) ? 0x8000 : 0);
  const double magnitude = std::fabs(number);
  if (std::isnan(number)) return 0x7e00;
  if (magnitude >= beyond_the_largest) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude == 0) return sign;
  // Rounds to nearest even. A carry out of the mantissa increments the exponent.
  const int exponent = std::max(std::ilogb(magnitude), least_exponent);
  const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  const auto biased = static_cast<uint32_t>(exponent - least_exponent) << mantissa_bits;
  return static_cast<uint16_t>(sign | (biased + static_cast<uint32_t>(steps)));
}

double float16_to_double(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

template <class Element>
void store(std::byte* memory, std::size_t index, Element element) {
  std::memcpy(memory + index * sizeof(Element), &element, sizeof(Element));
}

template <class Element>
Element load(const std::byte* memory, std::size_t index) {
  Element element;
  std::memcpy(&element, memory + index * sizeof(Element), sizeof(Element));
  return element;
}

void store_as(DType dtype, std::byte* memory, std::size_t index, double number) {
  if (dtype == DType::float64) return store(memory, index, number);
  if (dtype == DType::float32) return store(memory, index, static_cast<float>(number));
  if (dtype == DType::int64) return store(memory, index, static_cast<int64_t>(number));
  store(memory, index, dtype == DType::bfloat16 ? bfloat16_from(number) : float16_from(number));
}

double load_as(DType dtype, const std::byte* memory, std::size_t index) {
  if (dtype == DType::float64) return load<double>(memory, index);
  if (dtype == DType::float32) return load<float>(memory, index);
  if (dtype == DType::int32) return load<int32_t>(memory, index);
  if (dtype == DType::int64) return static_cast<double>(load<int64_t>(memory, index));
  const auto bits = load<uint16_t>(memory, index);
  return dtype == DType::bfloat16 ? bfloat16_to_double(bits) : float16_to_double(bits);
}

std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> result = {0};
  for (int64_t length : lengths) result.push_back(result.back() + length);
  return result;
}

MutableTensorView shape_of(const std::vector<int64_t>& lengths, Form form, int64_t heads, int64_t head_dim,
                           const Problem& problem) {
  const auto batch = static_cast<int64_t>(lengths.size());
  if (form == Form::dense) {
    return MutableTensorView::contiguous(nullptr, problem.dtype, {batch, lengths[0], heads, head_dim}, problem.device);
  }
  const int64_t rows = form == Form::shared ? lengths[0] : sum(lengths);
  return MutableTensorView::contiguous(nullptr, problem.dtype, {rows, heads, head_dim}, problem.device);
}

MutableTensorView shape_of(DType dtype, const std::vector<int64_t>& sizes, Device device) {
  MutableTensorView view{nullptr, dtype, device, static_cast<int>(sizes.size()), {}, {}};
  int64_t stride = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0; stride *= sizes[axis]) {
    view.sizes[axis] = sizes[axis];
    view.strides[axis] = stride;
  }
  return view;
}

/// `seed_of_tensor` is for normal numbers. The times of queries and keys are the same if their sizes are.
void fill(Tensor& tensor, const NamedTensor& named, uint64_t seed, uint64_t seed_of_tensor) {
  if (named.numbers == NamedTensor::Numbers::given) tensor.fill_with(named.data);
  if (named.numbers == NamedTensor::Numbers::normal) tensor.fill_with_normal_numbers(seed_of_tensor);
  if (named.numbers == NamedTensor::Numbers::times) tensor.fill_with_times(seed);
}

/// For a shared query, every batch entry has separate output rows.
MutableTensorView shape_of_output(const Problem& problem) {
  const Form form = problem.form_q == Form::dense ? Form::dense : Form::jagged;
  return shape_of(problem.lengths_q, form, problem.heads_q, problem.head_dim_v, problem);
}

}  // namespace

double rounded_to(DType dtype, double number) {
  std::array<std::byte, sizeof(double)> stored{};
  store_as(dtype, stored.data(), 0, number);
  return load_as(dtype, stored.data(), 0);
}

Tensor::Tensor(MutableTensorView shape, bool allocate) : view_(shape) {
  if (!allocate) return;
  try {
    memory_ = std::make_unique<std::byte[]>(bytes());
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(
        fmt::format("an operand of {:.1f} GiB does not fit into memory: expected less; take a smaller "
                    "--batch, --scale-batch or --max-length",
                    static_cast<double>(bytes()) / (1 << 30)));
  }
  view_.data = memory_.get();
  if (view_.device.kind == DeviceKind::cuda) {
    on_device_ = std::make_unique<DeviceMemory>(view_.device.index, bytes());
    view_.data = on_device_->data();
  }
}

Tensor::Tensor(DType dtype, const std::vector<int64_t>& sizes, Device device, bool allocate)
    : Tensor(shape_of(dtype, sizes, device), allocate) {}

void Tensor::upload() {
  if (on_device_) on_device_->upload(memory_.get());
}

TensorView Tensor::input() const {
  return {view_.data, view_.dtype, view_.device, view_.rank, view_.sizes, view_.strides};
}

int64_t Tensor::elements() const {
  int64_t product = 1;
  for (int i = 0; i < view_.rank; ++i) product *= view_.sizes[static_cast<std::size_t>(i)];
  return product;
}

void Tensor::fill_with_normal_numbers(uint64_t seed) {
  const auto size = static_cast<std::size_t>(size_in_bytes(view_.dtype));
  const auto count = static_cast<std::size_t>(elements());
  const std::size_t made = std::min(count, period_of_numbers);
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < made; ++i) store_as(view_.dtype, memory_.get(), i, normal(generator));
  for (std::size_t i = made; i < count; i += made) {
    std::memcpy(memory_.get() + i * size, memory_.get(), std::min(made, count - i) * size);
  }
  upload();
}

void Tensor::fill_with_times(uint64_t seed) {
  constexpr int64_t end = 1 << 22;  // float32 represents every whole number below it
  constexpr double mean_of_log = 3, deviation_of_log = 2;
  std::mt19937_64 generator(seed);
  std::lognormal_distribution<double> gap(mean_of_log, deviation_of_log);
  int64_t time = 0;
  for (int64_t i = 0; i < elements(); ++i) {
    store_as(view_.dtype, memory_.get(), static_cast<std::size_t>(i), static_cast<double>(time));
    time = static_cast<int64_t>(static_cast<double>(time) + std::min(gap(generator), static_cast<double>(end))) % end;
  }
  upload();
}

void Tensor::fill_with(const std::vector<std::byte>& data) {
  std::memcpy(memory_.get(), data.data(), data.size());
  upload();
}

void Tensor::poison() {
  // All bits set is NaN in all four types.
  std::memset(memory_.get(), 0xff, bytes());
  upload();
}

std::vector<std::byte> Tensor::contents() const {
  if (on_device_) on_device_->download(memory_.get());
  return {memory_.get(), memory_.get() + bytes()};
}

std::vector<double> Tensor::to_double() const {
  if (on_device_) on_device_->download(memory_.get());
  std::vector<double> numbers(static_cast<std::size_t>(elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = load_as(view_.dtype, memory_.get(), i);
  return numbers;
}

Workload::Workload(const Problem& problem, Contents contents, uint64_t seed)
    : cumulative_q_(cumulative(problem.lengths_q)),
      cumulative_k_(cumulative(problem.lengths_k)),
      out_scale_(problem.out_scale),
      out_scale_of_rows_(problem.out_scale.begin(), problem.out_scale.end()) {
  const bool allocate = contents == Contents::random;
  const auto shape_q = shape_of(problem.lengths_q, problem.form_q, problem.heads_q, problem.head_dim, problem);
  const auto shape_k = shape_of(problem.lengths_k, problem.form_k, problem.heads_k, problem.head_dim, problem);
  const auto shape_v = shape_of(problem.lengths_k, problem.form_k, problem.heads_k, problem.head_dim_v, problem);
  query = Tensor(shape_q, allocate);
  key = Tensor(shape_k, allocate);
  value = Tensor(shape_v, allocate);
  output = Tensor(shape_of_output(problem), allocate);
  grad_output = Tensor(shape_of_output(problem), allocate);
  grad_query = Tensor(shape_q, allocate);
  grad_key = Tensor(shape_k, allocate);
  grad_value = Tensor(shape_v, allocate);
  if (allocate) {
    uint64_t stream = 4 * seed;
    for (Tensor* tensor : {&query, &key, &value, &grad_output}) tensor->fill_with_normal_numbers(stream++);
    for (Tensor* tensor : {&output, &grad_query, &grad_key, &grad_value}) tensor->poison();
  }

  attention_ = {.query = query.input(), .key = key.input(), .value = value.input(), .activation = problem.activation};
  for (const NamedTensor& named : problem.tensors) add_tensor(named, allocate, seed);
  if (problem.form_q == Form::jagged) {
    attention_.cu_seqlens_q = vector_view(cumulative_q_.data(), DType::int64, cumulative_q_.size());
  }
  if (problem.form_k == Form::jagged) {
    attention_.cu_seqlens_k = vector_view(cumulative_k_.data(), DType::int64, cumulative_k_.size());
  }
  attention_.scale = problem.scale;
  attention_.out_scale.kind = problem.out_scale_kind;
  if (problem.out_scale_kind == OutScale::Kind::number) attention_.out_scale.number = out_scale_.front();
  if (problem.out_scale_kind == OutScale::Kind::per_batch) {
    attention_.out_scale.per_batch = vector_view(out_scale_.data(), DType::float64, out_scale_.size());
  }
  if (problem.out_scale_kind == OutScale::Kind::per_row) {
    attention_.out_scale.per_row = vector_view(out_scale_of_rows_.data(), DType::float32, out_scale_of_rows_.size());
    if (problem.form_q == Form::dense) {
      const int64_t length = problem.lengths_q.front();
      attention_.out_scale.per_row.rank = 2;
      attention_.out_scale.per_row.sizes = {problem.batch(), length};
      attention_.out_scale.per_row.strides = {length, 1};
    }
  }
  attention_.mask = problem.mask;
  attention_.mask_expression = problem.mask_expression;
  for (const NamedTensor& named : problem.mask_tensors) {
    attention_.mask_parameters.push_back({named.name, add_mask_tensor(named, seed).input()});
  }
  attention_.accuracy = problem.accuracy;
  attention_.allow_tf32 = problem.allow_tf32;
  attention_.deterministic = problem.deterministic;
  attention_.add_query = problem.add_query;
  attention_.threads = problem.threads;
  if (problem.device.kind == DeviceKind::cuda) {
    stream_ = std::make_unique<DeviceStream>(problem.device.index);
    attention_.stream = stream_->handle();
  }
}

Tensor& Workload::add_mask_tensor(const NamedTensor& named, uint64_t seed) {
  Tensor& tensor = mask_tensors.emplace_back(named.dtype, named.sizes, query.view().device, true);
  fill(tensor, named, seed, 4 * seed + 1003 + mask_tensors.size());
  return tensor;
}

void Workload::add_tensor(const NamedTensor& named, bool allocate, uint64_t seed) {
  const Device device = query.view().device;
  Tensor& tensor = tensors.emplace_back(named.dtype, named.sizes, device, allocate);
  if (allocate) fill(tensor, named, seed, 4 * seed + 3 + tensors.size());
  attention_.parameters.push_back({named.name, tensor.input()});
  Tensor& gradient = grad_tensors.emplace_back();
  if (!named.wants_gradient) return;
  const DType sums = query.view().dtype == DType::float64 ? DType::float64 : DType::float32;
  gradient = Tensor(sums, named.sizes, device, allocate);
  if (allocate) gradient.poison();
  grad_parameters_.push_back({named.name, gradient.view()});
}

TensorView Workload::vector_view(const void* data, DType dtype, std::size_t size) {
  const Device device = query.view().device;
  if (device.kind == DeviceKind::cuda) {
    vectors_.push_back(
        std::make_unique<DeviceMemory>(device.index, size * static_cast<std::size_t>(size_in_bytes(dtype))));
    vectors_.back()->upload(data);
    data = vectors_.back()->data();
  }
  return TensorView::contiguous(data, dtype, {static_cast<int64_t>(size)}, device);
}

double forward_flops(const Problem& problem) {
  Problem on_cpu = problem;
  on_cpu.device = {};
  return gdpa::flops(Workload(on_cpu, Contents::none, 0).attention(), Direction::forward);
}

std::vector<double> Workload::time(const std::function<void()>& work, double seconds) const {
  return stream_ ? stream_->time_for(work, seconds) : time_calls(work, seconds);
}

std::vector<double> Workload::time_host(const std::function<void()>& work, double seconds) const {
  if (!stream_) return time_calls(work, seconds);
  constexpr int calls_at_a_time = 64;  // small enough for the driver's queue
  std::vector<double> times;
  double total = 0;
  do {
    for (int call = 0; call < calls_at_a_time; ++call) {
      times.push_back(time_calls(work, 0).front());
      total += times.back();
    }
    stream_->wait();
  } while (total < seconds);
  return times;
}

}  // namespace gdpa::tool
