// A normalisation of rows with an optional gate and residual, for the rows before and after attention:
//
//     layer:  n = (x - mean) * rstd * weight + bias        rstd = 1 / sqrt(mean((x - mean)^2) + eps)
//     rms:    n = x * rstd * weight + bias                 rstd = 1 / sqrt(mean(x^2) + eps)
//     y = n * gate + residual
//
// Each row is read once and written once. The CTAs are persistent, so that weights are loaded once. A CTA loads its
// next rows while it computes.
//
// Launch: grid any number of CTAs, best ctas for each multiprocessor; block norm_threads<Config>; no dynamic shared
//         memory; no workspace.
//
// Config: struct of norm_row.cuh with
//     bool is_layer;                                        otherwise rms
//     bool has_weight, has_bias, has_gate, has_residual;    which operands exist
//     int ctas;                                             that have to fit on one multiprocessor
#pragma once

#include "portable/norm_row.cuh"

namespace gdpa::portable {

template <class Config>
constexpr int norm_threads = NormRow<Config>::cta_threads;
template <class Config>
constexpr int norm_shared_bytes = 0;

/// The operands of a row.
template <class Config>
struct NormInputs {
  using Row = NormRow<Config>;
  typename Row::Chunks x, gate, residual;

  __device__ NormInputs(const NormArguments& arguments, int64_t row) {
    const bool exists = row < arguments.rows;
    x = Row::load(arguments.x, row, exists);
    if constexpr (Config::has_gate) gate = Row::load(arguments.gate, row, exists);
    if constexpr (Config::has_residual) residual = Row::load(arguments.residual, row, exists);
  }
};

template <class Config>
__device__ void norm(const NormArguments& arguments) {
  using Row = NormRow<Config>;
  constexpr int elements = Row::elements;
  float weight[elements], bias[elements];
  if constexpr (Config::has_weight) Row::load_weights(arguments.weight, weight);
  if constexpr (Config::has_bias) Row::load_weights(arguments.bias, bias);
  const int64_t step = int64_t{gridDim.x} * Row::rows;
  int64_t row = int64_t{blockIdx.x} * Row::rows + Row::slot();
  const int64_t end_of_slot = arguments.rows + Row::slot();  // all threads of a CTA make the same number of rounds
  NormInputs<Config> inputs(arguments, row);
#pragma unroll 1
  for (; row < end_of_slot; row += step) {
    const NormInputs<Config> now = inputs;
    inputs = NormInputs<Config>(arguments, row + step);
    float x[elements];
    Row::unpack(now.x, x);
    float mean[1] = {0.0f};
    if constexpr (Config::is_layer) {
#pragma unroll
      for (const float number : x) mean[0] += number;
      Row::mean_over_row(mean);
    }
    float variance[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      x[i] -= mean[0];
      if (Row::has(i / Row::chunk)) variance[0] += x[i] * x[i];
    }
    Row::mean_over_row(variance);
    const float rstd = rsqrtf(variance[0] + arguments.eps);
    float gate[elements], residual[elements];
    if constexpr (Config::has_gate) Row::unpack(now.gate, gate);
    if constexpr (Config::has_residual) Row::unpack(now.residual, residual);
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      x[i] *= rstd;
      if constexpr (Config::has_weight) x[i] *= weight[i];
      if constexpr (Config::has_bias) x[i] += bias[i];
      if constexpr (Config::has_gate) x[i] *= gate[i];
      if constexpr (Config::has_residual) x[i] += residual[i];
    }
    if (row < arguments.rows) {
#pragma unroll
      for (int i = 0; i < Row::chunks; ++i) Row::store(arguments.y, row, i, x + i * Row::chunk);
      if (threadIdx.x % Row::threads == 0) arguments.statistics[row] = {mean[0], rstd};
    }
  }
}

}  // namespace gdpa::portable
