// The gradients of norm.cuh, with n^ = (x - mean) * rstd, and mean = 0 for rms:
//
//     dgate = dy * n          dn = dy * gate          g = dn * weight          dresidual = dy
//     layer:  dx = rstd * (g - mean(g) - n^ * mean(g * n^))          rms:  dx = rstd * (g - n^ * mean(g * n^))
//     dweight = sum over rows of dn * n^                             dbias = sum over rows of dn
//
// Each row is read once. The rows of a CTA add to sums for the weights in registers. A CTA writes its sums as a partial
// result, and a second kernel adds the partial results in order, so the results are the same every time.
//
// Launch: grid any number of CTAs, best ctas for each multiprocessor. Workspace: the partial results,
//         (CTAs, sums, columns) in fp32, not cleared.
//
// Config: struct of norm.cuh, without has_residual, with
//     bool computes_x, computes_gate;                       which gradients the call wants
//     bool computes_weight, computes_bias;                  the same, in this order in the partial results
#pragma once

#include "portable/norm_row.cuh"

namespace gdpa::portable {

template <class Config>
using norm_backward_cta = CtaShape<NormRow<Config>::cta_threads>;

/// The operands of a row.
template <class Config>
struct NormBackwardInputs {
  typename NormRow<Config>::Chunks x, gate, grad_y;
  RowStatistics statistics;
};

/// Adds the sums of the threads with the same columns, and writes them as the CTA's partial result.
template <class Config>
__device__ void store_partial_sums(const float (&sums)[NormRow<Config>::elements], float* partial) {
  using Row = NormRow<Config>;
  __shared__ float of_rows[Row::rows > 1 ? Row::cta_threads : 1];
#pragma unroll
  for (int i = 0; i < Row::elements; ++i) {
    float sum = sums[i];
    if constexpr (Row::rows > 1) {
      of_rows[threadIdx.x] = sum;
      __syncthreads();
      sum = 0.0f;
      if (threadIdx.x < Row::threads) {
        for (int row = 0; row < Row::rows; ++row) sum += of_rows[row * Row::threads + static_cast<int>(threadIdx.x)];
      }
      __syncthreads();
    }
    if (threadIdx.x < Row::threads && Row::has(i / Row::chunk)) {
      partial[Row::column(i / Row::chunk) + i % Row::chunk] = sum;
    }
  }
}

template <class Config>
__device__ void norm_backward(const NormBackwardArguments& arguments) {
  using Row = NormRow<Config>;
  constexpr int elements = Row::elements;
  constexpr bool needs_bias = Config::has_bias && Config::computes_gate;
  float weight[elements], bias[elements];
  if constexpr (Config::has_weight) Row::load_weights(arguments.weight, weight);
  if constexpr (needs_bias) Row::load_weights(arguments.bias, bias);
  float grad_weight[elements] = {}, grad_bias[elements] = {};
  const int64_t step = int64_t{gridDim.x} * Row::rows;
  int64_t first = int64_t{blockIdx.x} * Row::rows;  // of the rows of the CTA
  const int64_t first_row = first + Row::slot();    // of the thread
  typename Row::Cursor x_rows(arguments.x, first_row, step), gate_rows(arguments.gate, first_row, step),
      grad_rows(arguments.grad_y, first_row, step), grad_x(arguments.grad_x, first_row, step),
      grad_gate(arguments.grad_gate, first_row, step);
  const auto load = [&](int64_t row) {
    const bool exists = row < arguments.rows;
    NormBackwardInputs<Config> loaded;
    loaded.x = x_rows.next(exists);
    loaded.grad_y = grad_rows.next(exists);
    if constexpr (Config::has_gate) loaded.gate = gate_rows.next(exists);
    loaded.statistics = exists ? arguments.statistics[row] : RowStatistics{0.0f, 0.0f};
    return loaded;
  };
  NormBackwardInputs<Config> inputs = load(first_row);
#pragma unroll 1
  for (; first < arguments.rows; first += step) {
    const int64_t row = first + Row::slot();
    const NormBackwardInputs<Config> now = inputs;
    inputs = load(row + step);
    const bool exists = row < arguments.rows;
    const float mean = now.statistics.mean, rstd = now.statistics.rstd;
    float x[elements], grad[elements], gate[elements];
    Row::unpack(now.x, x);
    Row::unpack(now.grad_y, grad);
    if constexpr (Config::has_gate) Row::unpack(now.gate, gate);
    float means[2] = {0.0f, 0.0f};  // of g * n^, and of g
#pragma unroll
    for (int c = 0; c < Row::chunks; ++c) {
      float of_gate[Row::chunk];
#pragma unroll
      for (int j = 0; j < Row::chunk; ++j) {
        const int i = c * Row::chunk + j;
        x[i] = Row::has(c) ? (x[i] - mean) * rstd : 0.0f;
        if constexpr (Config::computes_gate) {
          float n = x[i];
          if constexpr (Config::has_weight) n *= weight[i];
          if constexpr (Config::has_bias) n += bias[i];
          of_gate[j] = grad[i] * n;
        }
        if constexpr (Config::has_gate) grad[i] *= gate[i];
        if constexpr (Config::computes_weight) grad_weight[i] += grad[i] * x[i];
        if constexpr (Config::computes_bias) grad_bias[i] += grad[i];
        if constexpr (Config::has_weight) grad[i] *= weight[i];
        means[0] += grad[i] * x[i];
        means[1] += grad[i];
      }
      if constexpr (Config::computes_gate) {
        if (exists) grad_gate.store(c, of_gate);
      }
    }
    if constexpr (Config::computes_x) {
      if constexpr (Config::is_layer) {
        Row::mean_over_row(means);
      } else {
        float of_products[1] = {means[0]};
        Row::mean_over_row(of_products);
        means[0] = of_products[0];
        means[1] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < elements; ++i) grad[i] = rstd * (grad[i] - means[1] - x[i] * means[0]);
      if (exists) {
#pragma unroll
        for (int c = 0; c < Row::chunks; ++c) grad_x.store(c, grad + c * Row::chunk);
      }
    }
    grad_x.advance();
    grad_gate.advance();
  }
  constexpr int sums = int{Config::computes_weight} + int{Config::computes_bias};
  float* const partial = arguments.partials + int64_t{blockIdx.x} * sums * Config::columns;
  if constexpr (Config::computes_weight) store_partial_sums<Config>(grad_weight, partial);
  if constexpr (Config::computes_bias) {
    store_partial_sums<Config>(grad_bias, partial + int{Config::computes_weight} * Config::columns);
  }
}

template <class Config>
using norm_reduce_cta = CtaShape<256>;

/// Adds the partial results of norm_backward in order, and rounds the gradients of weight and bias.
///
/// Launch: grid any number of CTAs, best the numbers of a partial result / 32. Config: using Weight; int columns.
template <class Config>
__device__ void norm_reduce(const NormReduceArguments& arguments) {
  constexpr int columns_at_once = 32, parts = norm_reduce_cta<Config>::threads / columns_at_once;
  __shared__ float of_parts[parts][columns_at_once];
  const int numbers = arguments.sums * Config::columns;
  const auto part = static_cast<int>(threadIdx.x) / columns_at_once;
  const auto lane = static_cast<int>(threadIdx.x) % columns_at_once;
  for (int first = static_cast<int>(blockIdx.x) * columns_at_once; first < numbers;
       first += static_cast<int>(gridDim.x) * columns_at_once) {
    const int number = first + lane;
    float sum = 0.0f;
    if (number < numbers) {
      for (int64_t partial = part; partial < arguments.partial_count; partial += parts) {
        sum += arguments.partials[partial * numbers + number];
      }
    }
    of_parts[part][lane] = sum;
    __syncthreads();
    if (part == 0 && number < numbers) {
      sum = 0.0f;
      for (int i = 0; i < parts; ++i) sum += of_parts[i][lane];
      using Weight = typename Config::Weight;
      auto* const to = static_cast<typename Weight::Storage*>(arguments.gradients[number / Config::columns]);
      to[number % Config::columns] = Weight::rounded(sum);
    }
    __syncthreads();
  }
}

}  // namespace gdpa::portable
