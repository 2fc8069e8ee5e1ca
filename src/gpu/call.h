// Call: everything that the plan of a call on a GPU depends on. BoundCall: the same call with the addresses of its
// memory, from which a launch fills in its arguments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/arguments.cuh"
#include "definition/divide.h"
#include "definition/params.h"
#include "definition/problem.h"
#include "expression/function.h"
#include "gpu/kernel.h"
#include "gpu/thresholds.h"

namespace gdpa::gpu {

/// The properties of the device that a plan depends on.
struct Gpu {
  int multiprocessors = 132;
  int capability = 90;            ///< 10 * major + minor
  int shared_bytes = 227 * 1024;  ///< the most shared memory of one CTA
};

struct Call {
  const Problem& problem;
  const Params& params;
  const Expressions& expressions;
  Gpu gpu;
  bool aligned = true;          ///< every row of every operand begins at a multiple of 16 bytes
  bool has_tensor_maps = true;  ///< tensor maps can describe all operands (tensor_maps.h)

  const activation::FunctionFacts& facts() const { return expressions.function.facts(); }
};

/// Whether every row of every operand begins at a multiple of 16 bytes. An operand that the direction does not use has
/// a null address and strides of 0.
inline bool is_aligned(const Operand& operand, int64_t element_bytes) {
  constexpr int64_t copy_bytes = 16;  // of one copy of a kernel
  const auto address = reinterpret_cast<std::uintptr_t>(operand.data);
  const int64_t per_copy = copy_bytes / element_bytes;
  return address % copy_bytes == 0 && operand.batch_stride % per_copy == 0 && operand.row_stride % per_copy == 0 &&
         operand.head_stride % per_copy == 0;
}
inline bool is_aligned(const Problem& problem, const Params& params) {
  const int64_t bytes = size_in_bytes(problem.dtype);
  return is_aligned(params.query, bytes) && is_aligned(params.key, bytes) && is_aligned(params.value, bytes) &&
         is_aligned(params.output, bytes) && is_aligned(params.grad_output, bytes) &&
         is_aligned(params.grad_query, bytes) && is_aligned(params.grad_key, bytes) &&
         is_aligned(params.grad_value, bytes);
}

/// Whether a call has at most thresholds::scores_of_exact_calls scores. In deterministic mode the number of scores
/// decides nothing, because the bits of a sequence must not depend on the other sequences of the batch.
inline bool has_few_scores(const Problem& problem) {
  if (problem.deterministic) return false;
  const bool is_dense = problem.query_form == Form::dense && problem.key_form == Form::dense;
  const int64_t batch = std::max<int64_t>(1, problem.batch), key_entries = std::max<int64_t>(1, problem.key_entries());
  const int64_t rows_q = problem.rows_q * (problem.query_form == Form::shared ? batch : 1);
  const int64_t most_keys =
      is_dense ? divide_up(problem.rows_k, key_entries) : problem.rows_k;  // that a query can have
  const auto scores = static_cast<double>(problem.heads_q) * static_cast<double>(rows_q) *
                      static_cast<double>(most_keys);  // exact up to 2^53, and never overflows
  return scores <= thresholds::scores_of_exact_calls;
}

/// The accuracy that a GPU evaluates f with. The fast forms are made for 16-bit operands, and for calls with more than
/// few scores. Other calls are exact.
inline Accuracy accuracy_of(const Problem& problem) {
  if (problem.dtype == DType::float32) return Accuracy::exact;
  return has_few_scores(problem) ? Accuracy::exact : problem.accuracy;
}

/// Whether f needs many registers in addition to the accumulators of the products, so that tiles have to be narrower.
inline bool needs_many_registers(const Call& call) {
  return call.facts().reads > 0 || call.facts().has_long_steps(accuracy_of(call.problem));
}

/// The rows of an operand or a result of a call.
struct OperandShape {
  Sequences Params::*side;  ///< the sequences of the rows
  Form form;
  int64_t entries;  ///< of the batch, which have rows
  int64_t rows;     ///< of the operand. O and dO may have Problem::rows_o
  int64_t heads;
  int64_t columns;
};

inline OperandShape shape_of(const Problem& problem, Operand Params::*operand) {
  const auto is_one_of = [&](auto... members) { return ((operand == members) || ...); };
  const bool has_head_dim = is_one_of(&Params::query, &Params::key, &Params::grad_query, &Params::grad_key);
  const int64_t columns = has_head_dim ? problem.head_dim : problem.head_dim_v;
  if (is_one_of(&Params::key, &Params::value, &Params::grad_key, &Params::grad_value)) {
    return {&Params::keys, problem.key_form, problem.key_entries(), problem.rows_k, problem.heads_k, columns};
  }
  return {&Params::queries, problem.query_form, problem.batch, problem.rows_q, problem.heads_q, columns};
}

/// A call whose workspace is reserved.
struct BoundCall {
  const Problem& problem;
  const Params& params;           ///< as the caller passed them
  const CommonArguments& common;  ///< of attention kernels
  std::byte* workspace;           ///< device memory

  /// The device address `offset` bytes after the start of the workspace.
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(workspace + offset);
  }
};

}  // namespace gdpa::gpu
