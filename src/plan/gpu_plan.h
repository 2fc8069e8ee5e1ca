// The data of a GPU plan: which kernels run for a problem, which template instance of each, how many CTAs, and where
// the parts of the workspace are. The kernel families (src/families) make plans; no GPU is needed for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/bias_tile.cuh"
#include "definition/params.h"
#include "definition/problem.h"
#include "expression/program.h"
#include "gdpa/plan.h"
#include "hopper/arguments.cuh"
#include "plan/prepared_tiles.h"

namespace gdpa::plan {

/// The properties of the device that a plan depends on.
struct Gpu {
  int multiprocessors = 132;
  int capability = 90;            ///< 10 * major + minor
  int shared_bytes = 227 * 1024;  ///< the most shared memory of one CTA
};

/// The registers that a function needs in addition to the accumulators of the products: few, or so many that the tiles
/// have to be narrower.
enum class FunctionRegisters : std::uint8_t { few, many };

/// The registers that the program of f and f' needs: many where a step is a long polynomial in fp32 (erf, softplus,
/// powers, sines).
FunctionRegisters registers_of(const activation::Program& program, Accuracy accuracy);

/// Whether a call has at most thresholds::scores_of_exact_calls scores. In deterministic mode the number of scores
/// decides nothing, because the bits of a sequence must not depend on the other sequences of the batch.
bool has_few_scores(const Problem& problem);

/// The accuracy that a GPU evaluates f with. The fast forms are made for 16-bit operands, and for calls with more than
/// few scores. Other calls are exact.
Accuracy accuracy_of(const Problem& problem);

enum class KernelKind : std::uint8_t {
  forward,
  backward,
  wide_backward,
  backward_query,
  parameter_gradients,
  round_parameters,
  complete_terms,
  key_schedule,
  round_grad_query,
  reduce,
  locate_sequences,
  group_entries,
  find_overlap,
  locate_lists,
  list_key_tiles,
  list_query_tiles,
  clear_gaps,
  check_offsets,
  check_indices,
  norm,
  norm_backward,
  norm_reduce
};

/// Whether kernels of this kind evaluate f or its indices.
bool has_function(KernelKind kind);

/// Whether kernels of this kind have a Config::Mask.
bool has_mask(KernelKind kind);

/// Whether kernels of this kind write lists of partner tiles.
bool writes_lists(KernelKind kind);

/// Whether kernels of this kind compute norms.
bool is_norm(KernelKind kind);

/// Whether all calls use the same kernel of this kind.
bool has_no_config(KernelKind kind);

/// The type of the operands of the tensor cores. fp32 is computed in tf32, one product or three.
enum class GpuElement : std::uint8_t { bfloat16, float16, float32, tensor_float32 };

/// The sums of the gradients of tensors (kernels/common/parameter_sum.cuh), or the terms that backward stores in a
/// gradient (kernels/hopper/stored_terms.cuh).
enum class ParameterSum : std::uint8_t { float32, float64, exact, bfloat16_term, float16_term };

/// Whether backward stores terms in the type of the gradient.
inline bool is_term(ParameterSum sum) {
  return sum == ParameterSum::bfloat16_term || sum == ParameterSum::float16_term;
}

/// Backward of keys whose sequences may overlap has kernels for both cases, and the device knows which one it is. The
/// kernels of the other case end at once.
enum class KeyOverlap : std::uint8_t { any, none, some };

/// The members of a KernelSpec that only kernels of norms have. KernelSpec::head_dim is the number of columns.
struct NormSpec {
  bool is_layer = false;           ///< otherwise rms
  bool weight_is_float32 = false;  ///< weight and bias; otherwise they have the type of the rows
  bool has_weight = false;
  bool has_bias = false;
  bool has_gate = false;
  bool has_residual = false;
  bool computes_x = false;  ///< norm_backward: which gradients are computed
  bool computes_gate = false;
  bool computes_weight = false;
  bool computes_bias = false;

  bool operator==(const NormSpec&) const = default;
};
/// The gradients of tensors that a backward kernel computes with dQ, dK and dV (kernels/hopper/backward_gradients.cuh).
enum class FusedGradients : std::uint8_t { none, of_numbers, of_scores };

/// The members of a KernelSpec that only portable kernels have.
struct PortableSpec {
  int column_warps = 1;  ///< warps along the columns of the accumulators; backward: also along the queries of S
  bool reduce_grad_query = false;  ///< backward: add to dQ atomically
  bool queries_shared = false;     ///< backward_query: the batch shares the queries
  NormSpec norm = {};

  bool operator==(const PortableSpec&) const = default;
};

/// The members of a KernelSpec that only Hopper kernels have.
struct HopperSpec {
  int query_stages = 0;                 ///< forward, parameter_gradients: stages of the operands of queries;
                                        ///< KernelSpec::stages is the number for K and V
  bool query_in_registers = false;      ///< forward: Q is an RS operand; otherwise it stays in shared memory
  int box_keys = 0;                     ///< forward, with pages: the keys of one TMA load
  BiasTile bias_tile = BiasTile::none;  ///< forward: of a dense bias in shared memory
  bool prefetches_bias = false;         ///< backward: the elements of a dense bias are loaded into the L1 cache first
  bool stages_lookups = false;          ///< forward: the elements of lookups are staged in shared memory
  bool has_dq_semaphores = false;   ///< backward: semaphores order the additions to dQ. Otherwise key_schedule clears
                                    ///< accumulators, and round_grad_query rounds them
  bool ordered = false;             ///< backward: CTAs add to dQ in one order
  bool scales_entries = false;      ///< backward: the entries of a key tile may differ in out_scale
  bool by_heads = false;            ///< key_schedule: the order of the key tiles (kernels/hopper/head_groups.cuh)
  bool takes_head_factors = false;  ///< backward: dV and dS have factors of the head (activation::ForwardForm)
  bool takes_constant_factors = false;     ///< backward: dV and dS have constant factors (activation::ForwardForm)
  bool may_take_scale = false;             ///< backward: coefficients of f may contain the scale (the same struct)
  hopper::Pass pass = hopper::Pass::only;  ///< forward, backward and its key_schedule
  int sum_elements = 0;  ///< parameter_gradients: elements for which each consumer thread has a sum of its own
  FusedGradients gradients = FusedGradients::none;  ///< backward
  bool own_elements = false;                        ///< backward: each score may have an element of its own in a sum

  bool operator==(const HopperSpec&) const = default;
};

/// The kernel families, in the order of the alternatives of KernelSpec::of_family.
enum class KernelFamily : std::uint8_t { portable, hopper };

/// One template instance: everything that its generated source depends on, except the function. A member that a kernel
/// does not read has its default value, so that equal kernels have equal specifications.
struct KernelSpec {
  KernelKind kind = KernelKind::forward;
  GpuElement element = GpuElement::bfloat16;
  int head_dim = 0;
  int head_dim_v = 0;
  int tile_queries = 0;
  int tile_keys = 0;
  int warps = 0;  ///< warps that compute, along the rows of the tile that the CTA owns
  int stages = 0;
  int ctas = 1;  ///< CTAs that have to fit on one multiprocessor
  bool aligned = false;
  bool has_pages = false;           ///< forward: keys and values are in pages
  bool adds_query = false;          ///< kernels that store O or dQ: Q, or dO, is added
  bool keys_shared = false;         ///< backward: the batch shares the keys
  bool has_batch_map = false;       ///< backward, key_schedule: several batch entries may have the keys of one owner
  bool has_output_offsets = false;  ///< O and dO have rows of their own
  bool owns_rows = false;           ///< backward: the owners are rows of the operand of keys (common/rows_layout.cuh)
  KeyOverlap for_overlap = KeyOverlap::any;  ///< the case in which the kernel does not end at once
  bool wants_grad_query = true;              ///< whether dQ is computed; true in kernels that have no such choice
  bool wants_grad_key = true;                ///< the same for dK
  bool wants_grad_value = true;              ///< the same for dV
  bool scales_scores = true;                 ///< otherwise f is homogeneous, and its argument is Q K^T
  bool has_row_scale = false;                ///< forward: out_scale has one number for each query
  unsigned tensor_types = 0;                 ///< of the tensors that f reads, as in Problem
  unsigned mask_types = 0;                   ///< of the tensors that a mask expression reads, as in Problem
  int tile_lists = 0;                        ///< with a mask expression: the index in Params::tile_lists
  unsigned wanted_parameters = 0;            ///< parameter_gradients, and backward with such gradients: bit n: tensor n
  ParameterSum parameter_sum = ParameterSum::float64;  ///< the same kernels, and round_parameters
  Accuracy accuracy = Accuracy::fast;                  ///< of f, in kernels that evaluate it
  std::variant<PortableSpec, HopperSpec> of_family;

  KernelFamily family() const { return static_cast<KernelFamily>(of_family.index()); }

  /// The members of the kernel's own family; of another family: std::bad_variant_access.
  const PortableSpec& portable() const { return std::get<PortableSpec>(of_family); }
  PortableSpec& portable() { return std::get<PortableSpec>(of_family); }
  const HopperSpec& hopper() const { return std::get<HopperSpec>(of_family); }
  HopperSpec& hopper() { return std::get<HopperSpec>(of_family); }

  bool operator==(const KernelSpec&) const = default;
};

/// A hash of all members.
std::size_t hash_of(const KernelSpec& kernel);

/// One kernel to launch. `work` is an upper bound of its CTAs.
struct GpuStep {
  KernelSpec kernel;
  int64_t work = 0;
  /// The kernel may start before the previous step has ended. Only for kernels that begin with a wait for this end, as
  /// all Hopper kernels do.
  bool overlaps_previous = false;
};

/// Offsets of the fp32 accumulators in the workspace, in bytes; -1 if it has none.
struct GpuWorkspace {
  int64_t grad_query = -1;
  int64_t grad_key = -1;
  int64_t grad_value = -1;
  int64_t parameters = -1;       ///< the sums of the gradients of tensors, cleared before parameter_gradients
  int64_t parameter_bytes = 0;   ///< of one copy of these sums
  int parameter_copies = 1;      ///< params.parameter_sums.copies
  int64_t query_sequences = -1;  ///< the results of locate_sequences for the queries
  int64_t key_sequences = -1;    ///< the same for the keys of each batch entry
  int64_t owner_sequences = -1;  ///< the same for the sequences of keys, with a batch map
  int64_t output_rows = -1;      ///< the same for the rows of the output
  int64_t entries = -1;          ///< the results of group_entries
  int64_t merged_entries = -1;   ///< an array of the same size, for its merges
  int64_t runs = -1;             ///< runs that group_entries merges; none if the batch is one block
  int64_t first_entry = -1;
  int64_t overlap = -1;  ///< the result of find_overlap, and after it the bits of the rows; cleared before
  int64_t overlap_bytes = 0;
  int64_t bytes = 0;
  int64_t zeroed_bytes = 0;  ///< bytes from the start that are cleared before the first kernel
};

/// The part of a plan that only portable kernels have: nothing.
struct PortablePlan {};

/// The part of a plan that only Hopper kernels have. Offsets are in the workspace, in bytes; -1 means none.
struct HopperPlan {
  hopper::TileDistribution tiles;   ///< forward
  int64_t tiles_taken = -1;         ///< forward with a dynamic order: offset of ForwardArguments::tiles_taken
  int64_t found_nan = -1;           ///< forward with two passes: offset of ForwardArguments::found_nan
  int64_t slot_counter = -1;        ///< backward: offset of the counter of slots that CTAs have taken
  int64_t key_tiles = -1;           ///< backward: offset of the table that key_schedule writes
  int64_t slots = 0;                ///< backward: slots of that table
  int64_t segments = -1;            ///< backward with a batch map: offset of the table of query segments
  int64_t most_key_tiles = 0;       ///< backward with a batch map and a mask: tiles of keys of one sequence
  int64_t dq_semaphores = -1;       ///< backward: offset of the dQ semaphores
  int64_t semaphores_per_head = 0;  ///< an upper bound of the tiles of queries of a head
  int64_t heads_per_group = 0;      ///< with dQ semaphores: number of heads with interleaved tiles of keys in the table
  int whole_keys = 0;               ///< backward: up to so many keys, one CTA takes a whole sequence
  int direct_keys = 0;              ///< backward: up to so many keys, several CTAs sum dQ in the gradient
  bool prepares_grad_query = false;  ///< key_schedule has rows of dQ to clear or to fill with zeros
};

struct GpuPlan {
  int64_t splits =
      1;  ///< of the batch, where the batch shares an operand and partial results of its gradient are added
  GpuWorkspace workspace;
  std::vector<TileListsPlan> tile_lists;  ///< with a mask expression, in the workspace or in a prepared mask
  std::vector<GpuStep> list_steps;        ///< the kernels that write these lists, before `steps`; none if prepared
  std::vector<GpuStep> steps;             ///< of the family
  std::vector<GpuStep> parameter_steps;   ///< backward: the gradients of tensors, after `steps`
  std::vector<GpuStep> overlap_steps;     ///< backward: for keys whose sequences overlap; portable, after all others
  unsigned parameters_in_steps = 0;       ///< bit n: a kernel of `steps` computes the gradient of tensor n
  ParameterSum parameter_sum = ParameterSum::float64;  ///< of the gradients of tensors
  /// The gradients have no sums in the workspace: parameter_gradients adds to the gradients, which are cleared before,
  /// or backward and complete_terms store all elements (is_term).
  bool adds_to_grad_parameters = false;
  hopper::TileDistribution parameter_tiles;  ///< of parameter_gradients
  bool reduces_grad_query = false;           ///< the reduce kernel makes dQ of workspace.grad_query
  bool deterministic = true;
  double output_factor = 1;  ///< forward, where scores are not scaled: multiplies every output, as out_scale does
  std::variant<PortablePlan, HopperPlan> of_family;
  std::string reason;  ///< why these kernels, in one sentence

  /// The part of the plan's own family; of another family: std::bad_variant_access.
  const HopperPlan& hopper() const { return std::get<HopperPlan>(of_family); }
  HopperPlan& hopper() { return std::get<HopperPlan>(of_family); }
};

/// fp32 operands in one tf32 product rather than three: torch.backends.cuda.matmul.allow_tf32.
enum class Float32Products : std::uint8_t { one, three };

/// Whether TMA can address every operand. Tensor maps require more of strides and sizes than `aligned` does.
enum class TensorMaps : std::uint8_t { unavailable, available };

/// fp32 accumulators pad a row of a head to a multiple of this number of columns, as the kernels do.
constexpr int64_t column_group = 16;
int64_t padded_columns(int64_t columns);

/// Makes a plan leave out the product of each score by scale. This is possible where f(scale s) is a multiple of f(s),
/// and where P, which is then larger by scale^-degree, cannot overflow. In backward, it is also possible where the
/// coefficients of the first pass can contain the scale (activation::ForwardForm). `value` is the program of f.
void take_scale_out(GpuPlan& plan, const activation::Program& value, double scale);

}  // namespace gdpa::plan
