// The GPU plan: which kernels run for a problem, which template instance of each, how many CTAs, and where the
// workspace goes. Pure functions of the problem and the device; no lengths are known here, and no GPU is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "activation/program.h"
#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/plan.h"
#include "hopper/arguments.cuh"

namespace gdpa::plan {

/// What a plan asks about the device.
struct Gpu {
  int multiprocessors = 132;
  int capability = 90;            ///< 10 * major + minor
  int shared_bytes = 227 * 1024;  ///< that one CTA may have
};

/// Which instructions a kernel is made of, and the folder of kernels/ that holds it.
enum class KernelFamily : std::uint8_t { portable, hopper };

/// How many registers a function takes beside the sums of the products: few, or so many that tiles have to be narrower.
enum class FunctionRegisters : std::uint8_t { few, many };

/// What the program of f and f' takes: many where a step is a long polynomial in fp32 (erf, softplus, powers, sines).
FunctionRegisters registers_of(const activation::Program& program, Accuracy accuracy);

/// The accuracy that a GPU evaluates f with. The fast forms are made for 16-bit operands, and for calls of more scores
/// than thresholds::scores_of_exact_calls; other calls are exact.
Accuracy accuracy_of(const Problem& problem);

enum class KernelKind : std::uint8_t {
  forward,
  backward,
  wide_backward,
  backward_query,
  key_schedule,
  round_grad_query,
  reduce,
  check_offsets
};

/// How the tensor cores see the operands. fp32 is computed in tf32, one product or three.
enum class GpuElement : std::uint8_t { bfloat16, float16, float32, tensor_float32 };

/// One template instance: everything that its generated source depends on beside the function. A member that a kind
/// does not read is left at its default, so that equal kernels are equal specifications.
struct KernelSpec {
  KernelFamily family = KernelFamily::portable;
  KernelKind kind = KernelKind::forward;
  GpuElement element = GpuElement::bfloat16;
  int head_dim = 0;
  int head_dim_v = 0;
  int tile_queries = 0;
  int tile_keys = 0;
  int warps = 0;         ///< that compute, along the rows that the CTA owns
  int column_warps = 1;  ///< along the columns of the sums; backward: along the queries of the scores too
  int stages = 0;
  int query_stages = 0;             ///< hopper: buffers of Q; the others are of K and V
  bool query_in_registers = false;  ///< hopper: Q as operand; else it stays in shared memory
  int ctas = 1;                     ///< that shall fit on one multiprocessor
  bool aligned = false;
  bool reduce_grad_query = false;
  bool keys_shared = false;
  bool queries_shared = false;
  bool sums_begun = false;  ///< hopper: by the first tile of keys, and ended by the last one; else cleared and rounded
  bool ordered = false;     ///< hopper: CTAs add to sums of dQ in one order
  hopper::BackwardPass pass = hopper::BackwardPass::only;  ///< hopper: of backward and its schedule
  bool wants_grad_query = true;        ///< Hopper's backward, wide_backward and key_schedule: whether dQ is computed
  bool wants_grad_key = true;          ///< the same for dK, and of the portable backward
  bool wants_grad_value = true;        ///< the same for dV
  bool scales_scores = true;           ///< forward: else the output is multiplied, by GpuPlan::output_factor
  Accuracy accuracy = Accuracy::fast;  ///< of f, in kernels that evaluate it

  bool operator==(const KernelSpec&) const = default;
};

/// One kernel to launch. `work` is the upper bound of its CTAs.
struct GpuStep {
  KernelSpec kernel;
  int64_t work = 0;
};

/// Where fp32 sums lie in the workspace, in bytes from its start; -1 where there are none.
struct GpuWorkspace {
  int64_t grad_query = -1;  ///< hopper: in an order of their own
  int64_t grad_key = -1;
  int64_t grad_value = -1;
  int64_t places_taken = -1;  ///< hopper: the counter of backward's schedule, and its table
  int64_t key_tiles = -1;
  int64_t turns = -1;  ///< hopper: of the additions to dQ
  int64_t bytes = 0;
  int64_t zeroed_bytes = 0;  ///< from the start, before the first kernel
};

struct GpuPlan {
  int64_t parts = 1;  ///< into which the batch is cut where an operand is shared and its gradient summed
  GpuWorkspace workspace;
  std::vector<GpuStep> steps;
  int64_t turns_of_head = 0;    ///< hopper: tiles of queries that have one, at most
  int64_t heads_of_window = 0;  ///< hopper: where there are turns, of the table that backward's schedule writes
  int64_t places = 0;           ///< hopper: of that table
  int direct_keys = 0;          ///< hopper: up to which one CTA of backward takes all keys of a sequence
  bool has_rows_left = false;   ///< hopper: of dQ, for backward's schedule to prepare
  bool deterministic = true;
  double output_factor = 1;  ///< forward, where scores are not scaled: of every output, beside out_scale
  bool in_runs = false;  ///< hopper: each CTA takes places that follow each other, so that K and V stay in its buffers
  std::string reason;    ///< why these kernels, in one sentence
};

/// fp32 operands in one tf32 product rather than three: torch.backends.cuda.matmul.allow_tf32.
enum class Float32Products : std::uint8_t { one, three };

/// Whether the copy engine (TMA) reaches every operand: its maps ask more of strides and sizes than `aligned` does.
enum class TensorMaps : std::uint8_t { unavailable, available };

/// fp32 sums pad each row of a head to this many floats, as the kernels do.
int64_t padded_columns(int64_t columns);

/// The kernel that rounds fp32 sums into a gradient: `rows` rows, one for each head, of `columns` columns.
GpuStep reduction(const Problem& problem, const Gpu& gpu, bool aligned, int64_t columns, int64_t rows);

/// Throws Error (runtime) where the GPU has too little shared memory for these head dims.
GpuPlan gpu_plan(const Problem& problem, const Gpu& gpu, FunctionRegisters function, bool aligned,
                 Float32Products products, TensorMaps tensor_maps = TensorMaps::unavailable);

/// Makes a forward plan leave out the product of each score by scale, where f(scale s) is a multiple of f(s) and the
/// weights, scale^-degree larger then, cannot overflow for it. `value` is the program of f.
void take_scale_out(GpuPlan& plan, const activation::Program& value, double scale);

/// Makes a Hopper backward plan compute first without the bounds that huge and infinite scores need, and again with
/// them where that shows in dK or dV: not where f' matters only for dQ. For a function that has any.
void leave_guards_out(GpuPlan& plan);

}  // namespace gdpa::plan
