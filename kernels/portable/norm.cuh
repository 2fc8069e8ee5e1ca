// A normalisation of rows with an optional gate and residual, for the rows before and after attention:
//
//     layer:  n = (x - mean) * rstd * weight + bias        rstd = 1 / sqrt(mean((x - mean)^2) + eps)
//     rms:    n = x * rstd * weight + bias                 rstd = 1 / sqrt(mean(x^2) + eps)
//     y = n * gate + residual
//
// Each row is read once and written once. The CTAs are persistent, so that weights are loaded once. A CTA loads its
// next rows while it computes.
//
// Launch: grid any number of CTAs, best ctas for each multiprocessor; no workspace.
//
// Config: struct of norm_row.cuh with
//     bool is_layer;                                        otherwise rms
//     bool has_weight, has_bias, has_gate, has_residual;    which operands exist
//     int ctas;                                             that have to fit on one multiprocessor
#pragma once

#include "portable/norm_row.cuh"

namespace gdpa::portable {

template <class Config>
using norm_cta = CtaShape<NormRow<Config>::cta_threads>;

/// The operands of a row.
template <class Config>
struct NormInputs {
  typename NormRow<Config>::Chunks x, gate, residual;
};

template <class Config>
__device__ void norm(const NormArguments& arguments) {
  using Row = NormRow<Config>;
  constexpr int elements = Row::elements;
  float weight[elements], bias[elements];
  if constexpr (Config::has_weight) Row::load_weights(arguments.weight, weight);
  if constexpr (Config::has_bias) Row::load_weights(arguments.bias, bias);
  const int64_t step = int64_t{gridDim.x} * Row::rows;
  int64_t first = int64_t{blockIdx.x} * Row::rows;  // of the rows of the CTA
  const int64_t first_row = first + Row::slot();    // of the thread
  typename Row::Cursor x_rows(arguments.x, first_row, step), gate_rows(arguments.gate, first_row, step),
      residual_rows(arguments.residual, first_row, step), y(arguments.y, first_row, step);
  const auto load = [&](int64_t row) {
    const bool exists = row < arguments.rows;
    NormInputs<Config> loaded;
    loaded.x = x_rows.next(exists);
    if constexpr (Config::has_gate) loaded.gate = gate_rows.next(exists);
    if constexpr (Config::has_residual) loaded.residual = residual_rows.next(exists);
    return loaded;
  };
  NormInputs<Config> inputs = load(first_row);
#pragma unroll 1
  for (; first < arguments.rows; first += step, y.advance()) {
    const int64_t row = first + Row::slot();
    const NormInputs<Config> now = inputs;
    inputs = load(row + step);
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
      for (int i = 0; i < Row::chunks; ++i) y.store(i, x + i * Row::chunk);
      if (threadIdx.x % Row::threads == 0) arguments.statistics[row] = {mean[0], rstd};
    }
  }
}

}  // namespace gdpa::portable
