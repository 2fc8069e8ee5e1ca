// The memory of a problem: operands with N(0, 1) numbers, outputs, and the views for the calls of gdpa.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device_memory.h"
#include "problem.h"

namespace gdpa::tool {

/// Returns the nearest number of a floating-point type.
double rounded_to(DType dtype, double number);

/// A contiguous operand (rows, heads, head_dim), or (batch, length, heads, head_dim) if dense. For a GPU it is created
/// in host memory and copied to the GPU.
class Tensor {
 public:
  Tensor() = default;
  Tensor(MutableTensorView shape, bool allocate);

  /// A contiguous tensor of any shape.
  Tensor(DType dtype, const std::vector<int64_t>& sizes, Device device, bool allocate);

  const MutableTensorView& view() const { return view_; }
  TensorView input() const;
  int64_t elements() const;

  void fill_with_normal_numbers(uint64_t seed);
  /// Whole seconds that increase by gaps of a log-normal distribution, and begin again before 2^22. For int64.
  void fill_with_times(uint64_t seed);
  void fill_with(const std::vector<std::byte>& data);
  /// Writes NaN to all elements, so that an unwritten element is an error.
  void poison();
  /// The bytes. On a GPU, waits for its work.
  std::vector<std::byte> contents() const;
  std::vector<double> to_double() const;

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(elements() * size_in_bytes(view_.dtype)); }
  void upload();

  MutableTensorView view_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<DeviceMemory> on_device_;
};

enum class Contents {
  none,    ///< only shapes and cumulative lengths, for a plan
  random,  ///< memory for all operands, with random inputs
};

class Workload {
 public:
  Workload(const Problem& problem, Contents contents, uint64_t seed);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  const Attention& attention() const { return attention_; }

  void run_forward() { forward(attention_, output.view()); }
  void run_backward() {
    backward(attention_, grad_output.input(), grad_query.view(), grad_key.view(), grad_value.view(), grad_parameters_);
  }

  /// Calls `work` for at least `seconds` and at least once. Returns the seconds of each call, measured with the clock
  /// on the CPU and with events on a GPU.
  std::vector<double> time(const std::function<void()>& work, double seconds) const;

  /// Returns the seconds until each call returned. On a GPU, a call returns before the computation ends.
  std::vector<double> time_host(const std::function<void()>& work, double seconds) const;

  Tensor query, key, value, output;
  Tensor grad_output, grad_query, grad_key, grad_value;
  std::vector<Tensor> tensors;       ///< in the order of Problem::tensors
  std::vector<Tensor> grad_tensors;  ///< the same, empty where no gradient is wanted
  std::vector<Tensor> mask_tensors;  ///< in the order of Problem::mask_tensors; always allocated, since they are small

 private:
  Tensor& add_mask_tensor(const NamedTensor& named, uint64_t seed);
  void add_tensor(const NamedTensor& named, bool allocate, uint64_t seed);
  TensorView vector_view(const void* data, DType dtype, std::size_t size);

  std::vector<int64_t> cumulative_q_, cumulative_k_;
  std::vector<double> out_scale_;
  std::vector<float> out_scale_of_rows_;
  std::vector<std::unique_ptr<DeviceMemory>> vectors_;
  std::vector<ParameterGradient> grad_parameters_;
  std::unique_ptr<DeviceStream> stream_;
  Attention attention_ = {.query = {}, .key = {}, .value = {}};
};

/// The FLOP of the products of forward, over the scores inside the mask. With a condition, evaluates it on the CPU.
double forward_flops(const Problem& problem);

}  // namespace gdpa::tool
