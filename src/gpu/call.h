// Call: everything that the plan of a call on a GPU depends on. BoundCall: the same call with the addresses of its
// memory, from which a launch fills in its arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/arguments.cuh"
#include "definition/params.h"
#include "definition/problem.h"
#include "expression/function.h"
#include "gpu/kernel.h"

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
bool is_aligned(const Problem& problem, const Params& params);
bool is_aligned(const Operand& operand, int64_t element_bytes);

/// Whether a call has at most thresholds::scores_of_exact_calls scores. In deterministic mode the number of scores
/// decides nothing, because the bits of a sequence must not depend on the other sequences of the batch.
bool has_few_scores(const Problem& problem);

/// The accuracy that a GPU evaluates f with. The fast forms are made for 16-bit operands, and for calls with more than
/// few scores. Other calls are exact.
Accuracy accuracy_of(const Problem& problem);

/// Whether f needs many registers in addition to the accumulators of the products, so that tiles have to be narrower.
bool needs_many_registers(const Call& call);

/// The rows of an operand or a result of a call.
struct OperandShape {
  Sequences Params::*side;  ///< the sequences of the rows
  Form form;
  int64_t entries;  ///< of the batch, which have rows
  int64_t rows;     ///< of the operand. O and dO may have Problem::rows_o
  int64_t heads;
  int64_t columns;
};
OperandShape shape_of(const Problem& problem, Operand Params::*operand);

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
