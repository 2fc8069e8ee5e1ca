// A call in the CUDA backend: make the plan, find the kernels, reserve the workspace, launch.
#include "cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <list>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "codegen/cuda_inputs.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/source.h"
#include "cuda/target.h"
#include "cuda/tensor_maps.h"
#include "definition/debug.h"
#include "expression/lookup.h"
#include "families/family.h"
#include "families/parameter_plan.h"
#include "families/planning.h"
#include "families/tile_lists_plan.h"
#include "gdpa/error.h"
#include "plan/gpu_plan.h"
#include "plan/representatives.h"
#include "plan/thresholds.h"
#include "plan/work.h"
#include "portable/arguments.cuh"

namespace gdpa::cuda {
namespace {

constexpr int64_t copy_bytes = 16;  // of one copy of a kernel, if every row begins at a multiple of it

bool is_aligned(const Operand& operand, int64_t element_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(operand.data);
  const int64_t per_copy = copy_bytes / element_bytes;
  return address % copy_bytes == 0 && operand.batch_stride % per_copy == 0 && operand.row_stride % per_copy == 0 &&
         operand.head_stride % per_copy == 0;
}

/// Every operand of the kernels. An operand that a direction does not use has a null address and strides of 0.
bool is_aligned(const Problem& problem, const Params& params) {
  const int64_t bytes = size_in_bytes(problem.dtype);
  return is_aligned(params.query, bytes) && is_aligned(params.key, bytes) && is_aligned(params.value, bytes) &&
         is_aligned(params.output, bytes) && is_aligned(params.grad_output, bytes) &&
         is_aligned(params.grad_query, bytes) && is_aligned(params.grad_key, bytes) &&
         is_aligned(params.grad_value, bytes);
}

/// The properties of the operands that a plan depends on, in addition to the problem, the function and the GPU.
struct Operands {
  Operands(const Problem& problem, const Params& params)
      : aligned(is_aligned(problem, params)), maps(tensor_maps(problem, params)), scale(params.scale) {}

  bool aligned;
  plan::TensorMaps maps;
  double scale;
};

/// The number of elements of tensors that f reads at each score.
int reads_of(const activation::Function& function) {
  const auto is_read = [](const activation::Input& input) { return input.kind == activation::Input::Kind::read; };
  return static_cast<int>(std::ranges::count_if(function.inputs(), is_read));
}

/// Whether f reads tensors without an index.
bool reads_numbers(const activation::Function& function) {
  const auto is_number = [](const activation::Input& input) { return input.kind == activation::Input::Kind::number; };
  return std::ranges::any_of(function.inputs(), is_number);
}

/// Whether f reads, for each pair of a query and a key, an element of a tensor that all batch entries share.
bool shares_pairs(const activation::Function& function, const Params& params) {
  const std::vector<activation::Input>& inputs = function.inputs();
  return std::ranges::any_of(inputs, [&](const activation::Input& input) {
    if (input.kind != activation::Input::Kind::read) return false;
    const BoundTensor& tensor = params.parameters[input.tensor];
    std::size_t positions = 0;
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      const auto bare = activation::bare_index(input.indices[axis], inputs);
      const bool is_position = bare == activation::Index::query || bare == activation::Index::key;
      positions += is_position && tensor.sizes[axis] > 1 ? 1 : 0;
      const bool varies_in_batch = tensor.sizes[axis] > 1 && tensor.strides[axis] != 0 &&
                                   activation::reads_index(input.indices[axis], inputs, activation::Index::batch);
      if (varies_in_batch) return false;
    }
    return positions > 1;
  });
}

/// The elements of activation::tile_read() if kernels may load its rows.
struct TileElements {
  int bytes = 0;  ///< of an element
  BiasTile tile = BiasTile::none;
};

/// Kernels may load rows if adjacent keys have adjacent elements. In deterministic mode, an axis of one element counts
/// as a longer one: the bias of a sequence alone may be as short as the sequence.
TileElements tile_elements(const activation::Function& function, const Problem& problem, const Params& params) {
  const std::vector<activation::Input>& inputs = function.inputs();
  const std::optional<std::size_t> read = activation::tile_read(function, problem.tensor_types);
  if (!read) return {};
  const activation::Input& input = inputs[*read];
  const BoundTensor& tensor = params.parameters[input.tensor];
  const int64_t bytes = tensor.type == NumberType::float32 ? 4 : 2;
  bool is_aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % copy_bytes == 0;
  for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
    const bool is_long = tensor.sizes[axis] > 1 || problem.deterministic;
    if (activation::bare_index(input.indices[axis], inputs) == activation::Index::key) {
      const bool begins_anywhere = activation::is_row_axis(input, axis);
      if (begins_anywhere || !is_long || tensor.strides[axis] != 1) return {};
    } else if (is_long) {
      is_aligned = is_aligned && tensor.strides[axis] * bytes % copy_bytes == 0;
    }
  }
  return {static_cast<int>(bytes), is_aligned ? BiasTile::aligned : BiasTile::unaligned};
}

/// The number of lookups of f if each has few elements, otherwise 0.
int lookups_with_few_elements(const activation::Function& function, unsigned tensor_types, const Params& params) {
  const std::vector<activation::Lookup> lookups = activation::lookups_of(function, tensor_types);
  const bool are_few = std::ranges::all_of(lookups, [&](const activation::Lookup& lookup) {
    const BoundTensor& tensor = params.parameters[function.inputs()[lookup.read].tensor];
    return tensor.sizes[lookup.axis] <= most_lookup_elements;
  });
  return are_few ? static_cast<int>(lookups.size()) : 0;
}

/// Whether f has guards that a first pass of backward may leave out: they stay if they may depend on inputs.
bool has_removable_guards(const activation::Function& function) {
  const bool is_of_score = function.inputs().empty() || function.of_sum() != nullptr;
  return function.has_guards() && (is_of_score || function.functions() > 1);
}

/// Whether f depends on the batch entry, on the position of the query, or on the length of its sequence.
bool reads_query_position(const activation::Function& function) {
  using activation::Index;
  return std::ranges::any_of(
      std::array{Index::batch, Index::query, Index::length_q, Index::first_row_q},
      [&](Index index) { return activation::reads_index(function.value_and_derivative(), function.inputs(), index); });
}

/// Whether the kernels need the results of locate_sequences for a side; see common/work.cuh.
bool locates_queries(const Problem& problem) {
  return problem.has_query_gaps || (problem.has_output_offsets && problem.query_form == Form::jagged);
}
bool locates_keys(const Problem& problem) {
  return problem.has_key_gaps || (problem.key_form == Form::jagged && problem.has_batch_map);
}

bool locates_sequences(const Problem& problem) {
  return locates_queries(problem) || locates_keys(problem) || problem.has_output_offsets;
}

/// Whether key-major kernels own sequences of keys that several batch entries may have (KeySequences); and whether they
/// need the results of locate_sequences for these.
bool has_key_sequences(const Problem& problem) {
  return problem.has_batch_map && problem.direction == Direction::backward && problem.wanted.of_operands();
}
bool locates_key_sequences(const Problem& problem) { return has_key_sequences(problem) && problem.has_key_gaps; }

/// GroupEntriesArguments::run of each launch of group_entries.
std::vector<int64_t> runs_of_entries(const Problem& problem) {
  std::vector<int64_t> runs = {0};
  for (int64_t run = portable::group_entries_block; run < problem.batch; run *= 2) runs.push_back(run);
  if (runs.size() > 1) runs.push_back(problem.batch);
  return runs;
}

/// The results of locate_sequences, the begins, the ends and the sums; and the results of find_overlap and
/// group_entries.
void reserve_sequences(const Problem& problem, plan::GpuPlan& plan) {
  plan::GpuWorkspace& workspace = plan.workspace;
  families::WorkspaceLayout layout(workspace);
  const auto bytes = [](int64_t entries) { return 3 * (entries + 1) * static_cast<int64_t>(sizeof(int64_t)); };
  if (locates_queries(problem)) workspace.query_sequences = layout.reserve(bytes(problem.batch));
  if (problem.has_output_offsets) workspace.output_rows = layout.reserve(bytes(problem.batch));
  if (locates_keys(problem)) workspace.key_sequences = layout.reserve(bytes(problem.batch));
  if (locates_key_sequences(problem)) workspace.owner_sequences = layout.reserve(bytes(problem.key_entries()));
  if (!plan.overlap_steps.empty()) {
    workspace.overlap_bytes = (1 + divide_up(problem.rows_k, 32)) * static_cast<int64_t>(sizeof(int));
    workspace.overlap = layout.reserve(workspace.overlap_bytes);
  }
  if (!has_key_sequences(problem)) return;
  workspace.entries = layout.reserve(problem.batch * static_cast<int64_t>(sizeof(int)));
  workspace.first_entry = layout.reserve((problem.key_entries() + 1) * static_cast<int64_t>(sizeof(int)));
  workspace.merged_entries = layout.reserve(problem.batch * static_cast<int64_t>(sizeof(int)));
}

plan::GpuPlan plan_of(const Problem& problem, const Params& params, const Operands& operands,
                      const activation::Function& function, const plan::Gpu& gpu) {
  const Accuracy accuracy = plan::accuracy_of(problem);
  const TileElements tile = tile_elements(function, problem, params);
  const families::PlanRequest request{
      .problem = problem,
      .gpu = gpu,
      .function = reads_of(function) > 0 ? plan::FunctionRegisters::many
                                         : plan::registers_of(function.value_and_derivative(), accuracy),
      .aligned = operands.aligned,
      .products = problem.allow_tf32 ? plan::Float32Products::one : plan::Float32Products::three,
      .tensor_maps = operands.maps,
      .has_guards = has_removable_guards(function),
      .reads = reads_of(function),
      .reads_of_lines = activation::reads_of_lines(function),
      .reads_query_position = reads_query_position(function),
      .reads_numbers = reads_numbers(function),
      .number_gradients = families::number_gradients(problem, function),
      .score_gradients = families::score_gradients(problem, function),
      .own_elements = families::has_own_elements(problem, params, function),
      .shares_pairs = shares_pairs(function, params),
      .bounds_scores = function.bounds_scores(),
      .lookups = lookups_with_few_elements(function, problem.tensor_types, params),
      .tile_element_bytes = tile.bytes,
      .bias_tile = tile.tile,
  };
  const bool has_operands = problem.direction == Direction::forward || problem.wanted.of_operands();
  plan::GpuPlan plan;
  if (has_operands) plan = families::gpu_plan(request);
  for (std::vector<plan::GpuStep>* const steps : {&plan.steps, &plan.overlap_steps}) {
    for (plan::GpuStep& step : *steps) {
      if (plan::has_mask(step.kernel.kind)) step.kernel.mask_types = problem.mask_types;
      if (!plan::has_function(step.kernel.kind)) continue;
      step.kernel.accuracy = accuracy;
      step.kernel.tensor_types = problem.tensor_types;
    }
  }
  if (problem.dtype != DType::float32 && accuracy != problem.accuracy) {
    plan.reason += fmt::format("; f is exact: the call has at most {} scores", plan::thresholds::scores_of_exact_calls);
  }
  if (has_operands) plan::take_scale_out(plan, function.value(), operands.scale);
  families::add_parameter_gradients(request, params, function, plan);
  families::add_tile_lists(problem, plan);
  reserve_sequences(problem, plan);
  return plan;
}

/// The fp32 accumulators of one gradient, which a launch of the reduce kernel rounds into the gradient.
struct Reduction {
  Operand CommonArguments::*accumulator;  ///< the member of the kernels' arguments
  Form form;
  int64_t rows;
  int64_t length;  ///< of a batch entry that is not jagged
  int64_t heads;
  int64_t columns;
  int64_t offset;  ///< into the workspace
  Operand gradient;
  const Operand* addend = nullptr;  ///< a tensor of the shape of the gradient

  /// Contiguous fp32 accumulators: (rows, heads, padded columns), for each dense entry and each split of the batch.
  Operand accumulators(const Memory& memory) const {
    Operand operand;
    operand.data = memory.at(offset);
    operand.head_stride = plan::padded_columns(columns);
    operand.row_stride = heads * operand.head_stride;
    operand.batch_stride = form == Form::jagged ? 0 : length * operand.row_stride;
    return operand;
  }
};

/// A result whose side has gaps, into which a launch of the clear_gaps kernel writes zeros, or the rows of a tensor
/// that is added to the result.
struct Gaps {
  Sequences side;  ///< without a batch map; null data: the rows of the output, which locate_sequences finds
  int64_t entries;
  int64_t rows;
  int64_t heads;
  int64_t columns;
  const Operand& result;
  const Operand* addend = nullptr;
};

std::vector<Gaps> gaps_of(const Problem& problem, const Params& params) {
  std::vector<Gaps> gaps;
  const bool is_forward = problem.direction == Direction::forward;
  const auto add_queries = [&](int64_t columns, const Operand& result, const Operand& added) {
    gaps.push_back({params.queries, problem.batch, problem.rows_q, problem.heads_q, columns, result,
                    problem.add_query ? &added : nullptr});
  };
  const auto add_keys = [&](int64_t columns, const Operand& result) {
    gaps.push_back({params.keys, problem.key_entries(), problem.rows_k, problem.heads_k, columns, result});
    gaps.back().side.map = {};
  };
  if (is_forward && problem.zeroes_output) {
    if (problem.has_output_offsets) {
      gaps.push_back({{}, problem.batch, problem.rows_o, problem.heads_q, problem.head_dim_v, params.output});
    } else if (problem.has_query_gaps) {
      add_queries(problem.head_dim_v, params.output, params.query);
    }
  }
  if (locates_queries(problem) && !is_forward && problem.wanted.query) {
    add_queries(problem.head_dim, params.grad_query, params.grad_output);
  }
  if (problem.has_key_gaps && !is_forward && problem.wanted.key) add_keys(problem.head_dim, params.grad_key);
  if (problem.has_key_gaps && !is_forward && problem.wanted.value) add_keys(problem.head_dim_v, params.grad_value);
  return gaps;
}

/// The kernels of a problem on a GPU, in order: the check of offsets in debug mode, the places of sequences, whether
/// keys overlap, the batch entries of each sequence of keys, the zeros of gaps, the check of indices in debug mode, the
/// plan's kernels, the reductions, the kernels for keys that overlap.
struct Sequence {
  Sequence(const Problem& problem, const Params& params, const Operands& operands, const Expressions& expressions,
           const plan::Gpu& gpu)
      : plan(plan_of(problem, params, operands, expressions.function, gpu)) {
    add_preparation(problem, params);
    gaps = gaps_of(problem, params);
    for (const Gaps& of_result : gaps) {
      add(plan::KernelKind::clear_gaps, divide_up(of_result.rows, portable::clear_gaps_rows));
    }
    const auto has_reads = [](const activation::Function& of) { return reads_of(of) > 0; };
    checks_reads = (has_reads(expressions.function) || (expressions.mask != nullptr && has_reads(*expressions.mask))) &&
                   checks_indices();
    if (checks_reads) {
      add(plan::KernelKind::check_indices, 1);
      plan::KernelSpec& spec = steps.back().kernel;
      families::select_structs(spec, problem);
      spec.tensor_types = problem.tensor_types;
      spec.mask_types = problem.mask_types;
    }
    steps.insert(steps.end(), plan.list_steps.begin(), plan.list_steps.end());
    steps.insert(steps.end(), plan.steps.begin(), plan.steps.end());
    steps.insert(steps.end(), plan.parameter_steps.begin(), plan.parameter_steps.end());

    const plan::GpuWorkspace& workspace = plan.workspace;
    const auto reduce = [&](const Reduction& reduction) {
      reductions.push_back(reduction);
      steps.push_back(families::reduction(problem, gpu, operands.aligned, reduction.columns,
                                          reduction.rows * reduction.heads, reduction.addend != nullptr));
    };
    if (plan.reduces_grad_query) {
      reduce({&CommonArguments::grad_query_accumulator, problem.query_form, problem.rows_q, params.queries.length,
              problem.heads_q, problem.head_dim, workspace.grad_query, params.grad_query,
              problem.add_query ? &params.grad_output : nullptr});
    }
    if (workspace.grad_key >= 0) {
      reduce({&CommonArguments::grad_key_accumulator, problem.key_form, problem.rows_k, params.keys.length,
              problem.heads_k, problem.head_dim, workspace.grad_key, params.grad_key});
    }
    if (workspace.grad_value >= 0) {
      reduce({&CommonArguments::grad_value_accumulator, problem.key_form, problem.rows_k, params.keys.length,
              problem.heads_k, problem.head_dim_v, workspace.grad_value, params.grad_value});
    }
    steps.insert(steps.end(), plan.overlap_steps.begin(), plan.overlap_steps.end());
  }

  /// Only the kernels that write the lists of a prepared mask.
  Sequence(const Problem& problem, const Params& params, plan::GpuPlan of_lists) : plan(std::move(of_lists)) {
    add_preparation(problem, params);
    steps.insert(steps.end(), plan.list_steps.begin(), plan.list_steps.end());
  }

  plan::GpuPlan plan;
  bool checks = false;
  bool checks_reads = false;
  std::vector<Gaps> gaps;
  std::vector<Reduction> reductions;
  std::vector<plan::GpuStep> steps;  ///< of all three

 private:
  void add(plan::KernelKind kind, int64_t work) {
    plan::KernelSpec spec;
    spec.kind = kind;
    steps.push_back({spec, work});
  }

  void add_preparation(const Problem& problem, const Params& params) {
    checks = checks_offsets() && (params.queries.is_jagged() || params.keys.is_jagged() || problem.has_batch_map ||
                                  problem.has_pages() || problem.has_output_offsets || problem.prepared != nullptr);
    if (checks) add(plan::KernelKind::check_offsets, 2);
    if (locates_sequences(problem)) add(plan::KernelKind::locate_sequences, 4);
    if (!plan.overlap_steps.empty()) {
      add(plan::KernelKind::find_overlap, divide_up(problem.key_entries(), portable::find_overlap_sequences));
    }
    if (!has_key_sequences(problem)) return;
    const int64_t numbers = problem.batch + problem.key_entries() + 1;
    for (std::size_t launch = 0; launch < runs_of_entries(problem).size(); ++launch) {
      add(plan::KernelKind::group_entries, divide_up(numbers, portable::group_entries_numbers));
    }
  }
};

/// The launches of one call.
class Call final : public families::StepLauncher {
 public:
  Call(const Problem& problem, const Params& params, Stream stream, const Sequence& sequence)
      : problem_(problem), params_(params), stream_(stream), sequence_(sequence) {}

  /// `kernels` has one kernel for each step of the sequence.
  void run(const KernelsOfCall& kernels, const Workspace& workspace) {
    const plan::GpuWorkspace& needed = sequence_.plan.workspace;
    const Memory memory(workspace, needed.bytes, stream_, "workspace_bytes");
    if (needed.zeroed_bytes > 0) {
      check(Driver::get().fill_async(memory.address(), 0, static_cast<std::size_t>(needed.zeroed_bytes), stream_),
            "clearing the workspace");
    }
    kernels_ = &kernels;
    if (sequence_.checks) {
      portable::CheckOffsetsArguments arguments{
          params_.queries, params_.keys,    problem_.has_query_gaps, problem_.has_key_gaps, params_.batch,
          problem_.rows_q, problem_.rows_k, params_.outputs.begins,  problem_.rows_o,       nullptr};
      if (problem_.prepared != nullptr) {
        const auto* const lists = static_cast<const std::byte*>(problem_.prepared->data);
        arguments.prepared = reinterpret_cast<const ListedEntry*>(lists + sequence_.plan.tile_lists.front().entries);
      }
      launch_next(&arguments);
    }
    const CommonArguments arguments = arguments_of(memory);
    if (locates_sequences(problem_)) launch_locate_sequences(arguments);
    if (!sequence_.plan.overlap_steps.empty()) launch_find_overlap(memory);
    if (has_key_sequences(problem_)) launch_group_entries(memory);
    for (const Gaps& gaps : sequence_.gaps) launch_clear_gaps(gaps, arguments.params.outputs);
    if (sequence_.checks_reads) {
      portable::CheckIndicesArguments checked = arguments;
      launch_next(&checked);
    }
    for (std::size_t step = 0; step < sequence_.plan.list_steps.size(); ++step) {
      portable::ListTilesArguments lists = arguments;
      launch_next(&lists);
    }
    launch_plan(arguments, memory);
    for (const Reduction& reduction : sequence_.reductions) {
      portable::ReduceArguments reduce = arguments_of(reduction, memory);
      launch_next(&reduce);
    }
    for (std::size_t step = 0; step < sequence_.plan.overlap_steps.size(); ++step) {
      CommonArguments rows = arguments;
      rows.key_sequences = {};
      rows.key_sequences.side.length = problem_.rows_k;
      rows.key_sequences.count = 1;
      launch_next(&rows);
    }
  }

  void launch_next(void* arguments) override {
    launch_one((*kernels_)[next_], sequence_.steps[next_], arguments);
    ++next_;
  }

 private:
  /// `located` has the addresses of the results.
  void launch_locate_sequences(const CommonArguments& located) {
    const auto numbers = [](const void* address) { return static_cast<int64_t*>(const_cast<void*>(address)); };
    const auto side_of = [&](const Sequences& side, int64_t entries, const Sequences& result, int64_t rows,
                             int64_t most, int64_t longest = most_gpu_rows) {
      portable::LocatedSide located_side{};
      located_side.sequences = side;
      located_side.entries = entries;
      located_side.rows = rows;
      located_side.most = most;
      located_side.longest = longest;
      located_side.begins = numbers(result.begins.data);
      located_side.ends = numbers(result.ends.data);
      located_side.sums = numbers(result.rows_before);
      return located_side;
    };
    // Sequences of queries do not overlap. More rows than the operand has come from wrong numbers.
    constexpr int64_t any = std::numeric_limits<int64_t>::max();
    Sequences sequences = params_.keys;
    sequences.map = {};
    // No entry has more queries than the output has rows.
    const int64_t longest = problem_.has_output_offsets ? std::min(problem_.rows_o, most_gpu_rows) : most_gpu_rows;
    portable::LocateSequencesArguments arguments{
        {side_of(params_.queries, problem_.batch, located.params.queries, problem_.rows_q, problem_.rows_q, longest),
         side_of(params_.keys, problem_.batch, located.params.keys, problem_.rows_k, any),
         side_of(sequences, problem_.key_entries(), located.key_sequences.side, problem_.rows_k, any),
         side_of(params_.queries, problem_.batch, located.params.outputs, problem_.rows_q, any, longest)}};
    arguments.sides[3].places = params_.outputs.begins;
    arguments.sides[3].place_rows = problem_.rows_o;
    launch_next(&arguments);
  }

  void launch_find_overlap(const Memory& memory) {
    const plan::GpuWorkspace& workspace = sequence_.plan.workspace;
    auto* const overlap = static_cast<int*>(memory.at(workspace.overlap));
    check(Driver::get().fill_async(reinterpret_cast<DevicePointer>(overlap), 0,
                                   static_cast<std::size_t>(workspace.overlap_bytes), stream_),
          "clearing the bits of rows");
    portable::FindOverlapArguments arguments{params_.keys, problem_.key_entries(), problem_.rows_k,
                                             reinterpret_cast<unsigned*>(overlap + 1), overlap};
    arguments.side.map = {};
    launch_next(&arguments);
  }

  void launch_group_entries(const Memory& memory) {
    const plan::GpuWorkspace& workspace = sequence_.plan.workspace;
    const auto at = [&](int64_t offset) { return static_cast<int*>(memory.at(offset)); };
    const std::vector<int64_t> runs = runs_of_entries(problem_);
    int* from = at(workspace.merged_entries);
    int* to = at(workspace.entries);
    // Each merge writes to the other array, and the last one to the entries.
    const bool has_odd_merges = runs.size() > 1 && runs.size() % 2 == 1;
    if (has_odd_merges) std::swap(from, to);
    for (const int64_t run : runs) {
      portable::GroupEntriesArguments arguments{params_.keys, problem_.batch, run, from, to, at(workspace.first_entry)};
      const bool is_search = run > 0 && run >= problem_.batch;
      if (is_search) arguments.entries = at(workspace.entries);
      launch_next(&arguments);
      std::swap(from, to);
    }
  }

  /// `outputs` are the rows of the output that locate_sequences has found.
  void launch_clear_gaps(const Gaps& gaps, const Sequences& outputs) {
    const int64_t bytes = size_in_bytes(problem_.dtype);
    const Operand addend = gaps.addend == nullptr ? Operand() : *gaps.addend;
    portable::ClearGapsArguments arguments{gaps.side.is_jagged() ? gaps.side : outputs,
                                           gaps.entries,
                                           gaps.rows,
                                           gaps.heads,
                                           gaps.columns * bytes,
                                           static_cast<unsigned char*>(gaps.result.data),
                                           gaps.result.row_stride * bytes,
                                           gaps.result.head_stride * bytes,
                                           static_cast<const unsigned char*>(addend.data),
                                           addend.row_stride * bytes,
                                           addend.head_stride * bytes,
                                           is_aligned(gaps.result, bytes) && is_aligned(addend, bytes)};
    launch_next(&arguments);
  }

  /// Launches the kernels of the plan.
  void launch_plan(const CommonArguments& given, const Memory& memory) {
    const plan::GpuPlan& plan = sequence_.plan;
    const bool wants_parameters = problem_.direction == Direction::backward && problem_.wanted.parameters != 0;
    CommonArguments arguments = given;
    portable::RoundParametersArguments rounding{};
    if (wants_parameters) std::tie(arguments, rounding) = clear_parameter_sums(given, memory);
    const families::PlannedCall call{problem_, plan, arguments, static_cast<std::byte*>(memory.at(0))};
    if (!plan.steps.empty()) families::family_of(plan.steps.front().kernel.family()).launch(call, *this);
    for (const plan::GpuStep& step : plan.parameter_steps) {
      if (step.kernel.kind == plan::KernelKind::round_parameters) {
        launch_next(&rounding);
      } else if (step.kernel.kind == plan::KernelKind::complete_terms) {
        launch_next(&arguments);
      } else {
        families::family_of(step.kernel.family()).launch_parameter_gradients(call, *this);
      }
    }
  }

  /// Clears the sums of the gradients of tensors, which are in the workspace or are the gradients themselves. Stored
  /// terms have sums of the last elements of the axes only. Returns the arguments with the sums as gradients, and the
  /// arguments of the kernel that rounds them.
  std::pair<CommonArguments, portable::RoundParametersArguments> clear_parameter_sums(CommonArguments arguments,
                                                                                      const Memory& memory) {
    const plan::GpuPlan& plan = sequence_.plan;
    const auto clear = [&](void* address, int64_t bytes) {
      check(Driver::get().fill_async(reinterpret_cast<DevicePointer>(address), 0, static_cast<std::size_t>(bytes),
                                     stream_),
            "clearing the gradients of tensors");
    };
    const int64_t bytes_of_sum = families::bytes_of_sum(plan.parameter_sum);
    portable::RoundParametersArguments rounding{};
    int64_t offset = plan.workspace.parameters;
    if (plan::is_term(plan.parameter_sum)) {
      arguments.params.parameter_sums.borders = memory.at(offset);
      clear(memory.at(offset), plan.workspace.parameter_bytes);
    }
    if (!plan.adds_to_grad_parameters) {
      arguments.params.parameter_sums = {plan.workspace.parameter_copies, plan.workspace.parameter_bytes};
      rounding.copies = arguments.params.parameter_sums;
      clear(memory.at(offset), plan.workspace.parameter_copies * plan.workspace.parameter_bytes);
    }
    for (std::size_t i = 0; i < most_parameters; ++i) {
      BoundTensor& gradient = arguments.params.grad_parameters[i];
      if ((problem_.wanted.parameters >> i & 1U) == 0) continue;
      const int64_t bytes = families::elements_of(gradient) * bytes_of_sum;
      if (plan::is_term(plan.parameter_sum)) continue;  // backward and complete_terms store all elements
      if (plan.adds_to_grad_parameters) {
        clear(gradient.data, bytes);
        continue;
      }
      rounding.gradients[i] = gradient;
      rounding.sums[i] = gradient.data = memory.at(offset);
      offset += bytes;
      int64_t stride = 1;
      for (int axis = gradient.rank; axis-- > 0; stride *= gradient.sizes[axis]) gradient.strides[axis] = stride;
    }
    return {arguments, rounding};
  }

  CommonArguments arguments_of(const Memory& memory) const {
    CommonArguments arguments{};
    arguments.params = params_;
    const plan::GpuWorkspace& workspace = sequence_.plan.workspace;
    const auto locate = [&](Sequences& side, int64_t entries, int64_t offset) {
      const auto* const numbers = static_cast<const int64_t*>(memory.at(offset));
      const int64_t count = entries + 1;
      side = {};
      side.begins = {numbers, 1, true};
      side.ends = {numbers + count, 1, true};
      side.rows_before = numbers + 2 * count;
    };
    if (has_key_sequences(problem_)) {
      arguments.key_sequences = {params_.keys, problem_.key_entries(),
                                 static_cast<const int*>(memory.at(workspace.entries)),
                                 static_cast<const int*>(memory.at(workspace.first_entry))};
      Sequences& side = arguments.key_sequences.side;
      side.map = {};
      if (locates_key_sequences(problem_)) locate(side, problem_.key_entries(), workspace.owner_sequences);
    }
    if (locates_queries(problem_)) locate(arguments.params.queries, problem_.batch, workspace.query_sequences);
    if (locates_keys(problem_)) locate(arguments.params.keys, problem_.batch, workspace.key_sequences);
    if (problem_.has_output_offsets) locate(arguments.params.outputs, problem_.batch, workspace.output_rows);
    const std::vector<plan::TileListsPlan>& planned = sequence_.plan.tile_lists;
    const auto at = [&](int64_t offset) -> void* {
      return problem_.prepared == nullptr ? memory.at(offset)
                                          : static_cast<std::byte*>(problem_.prepared->data) + offset;
    };
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const plan::TileListsPlan& of = planned[i];
      TileLists& lists = arguments.params.tile_lists[i];
      lists.tile_queries = of.tile_queries;
      lists.tile_keys = of.tile_keys;
      lists.heads = of.heads;
      lists.heads_of_list = of.heads_of_list;
      lists.capacity = of.capacity;
      lists.entries = static_cast<ListedEntry*>(at(of.entries));
      lists.key_tiles = static_cast<int*>(at(of.key_tiles));
      if (of.has_query_lists) lists.query_tiles = static_cast<int*>(at(of.query_tiles));
    }
    if (workspace.overlap >= 0) arguments.keys_overlap = static_cast<const int*>(memory.at(workspace.overlap));
    arguments.packed_rows_q = problem_.rows_q;
    arguments.packed_rows_k = problem_.rows_k;
    arguments.splits = sequence_.plan.splits;
    arguments.output_factor = static_cast<float>(sequence_.plan.output_factor);
    for (const Reduction& reduction : sequence_.reductions)
      arguments.*reduction.accumulator = reduction.accumulators(memory);
    return arguments;
  }

  portable::ReduceArguments arguments_of(const Reduction& reduction, const Memory& memory) const {
    const Operand from = reduction.accumulators(memory);
    const int64_t rows = std::max<int64_t>(1, reduction.rows);
    portable::ReduceArguments arguments{};
    arguments.partials = static_cast<const float*>(from.data);
    arguments.splits = reduction.form == Form::shared ? sequence_.plan.splits : 1;
    arguments.split_stride = reduction.rows * from.row_stride;
    arguments.rows = reduction.rows;
    arguments.rows_in_batch = reduction.form == Form::dense ? std::max<int64_t>(1, reduction.length) : rows;
    arguments.heads = reduction.heads;
    arguments.output = reduction.gradient;
    if (reduction.addend != nullptr) arguments.addend = *reduction.addend;
    return arguments;
  }

  void launch_one(const LoadedKernel& kernel, const plan::GpuStep& step, void* arguments) {
    // More work than a grid may have CTAs is taken by the same CTAs, one after the other.
    constexpr int64_t most_ctas = 0x7fffffff;
    const auto grid = static_cast<unsigned>(std::clamp<int64_t>(step.work, 1, most_ctas));
    void* parameters[] = {arguments};
    const Driver& driver = Driver::get();
    if (step.overlaps_previous && driver.launch_with_attributes != nullptr) {
      const LaunchAttribute overlaps;
      LaunchConfig config;
      config.grid[0] = grid;
      config.block[0] = kernel.threads;
      config.shared_bytes = kernel.shared_bytes;
      config.stream = stream_;
      config.attributes = &overlaps;
      config.attribute_count = 1;
      check(driver.launch_with_attributes(&config, kernel.handle, parameters, nullptr), "launching a kernel");
      return;
    }
    check(driver.launch(kernel.handle, grid, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, stream_, parameters,
                        nullptr),
          "launching a kernel");
  }

  const Problem& problem_;
  const Params& params_;
  Stream stream_;
  const Sequence& sequence_;
  const KernelsOfCall* kernels_ = nullptr;
  std::size_t next_ = 0;  ///< the step that launch_next launches
};

/// The lengths on the host: for counting work when a plan is asked for, never for a call.
class HostLengths {
 public:
  HostLengths(const Problem& problem, const Params& params) : params_(params) {
    if (problem.device.kind == DeviceKind::cpu) return;
    const CurrentDevice current(problem.device.index);
    for (Sequences* const side : {&params_.queries, &params_.keys}) {
      const int64_t sequences = side->map.data == nullptr ? problem.batch : side->sequences;
      copy(side->begins, sequences);
      copy(side->ends, sequences);  // with pages, the lengths
      copy(side->map, problem.batch);
    }
  }
  const Params& params() const { return params_; }

 private:
  void copy(Integers& numbers, int64_t count) {
    if (numbers.data == nullptr || count == 0) return;
    const auto extent = static_cast<std::size_t>((count - 1) * numbers.stride + 1);
    std::vector<std::byte>& host = host_.emplace_back(extent * (numbers.is_int64 ? 8 : 4));
    check(Driver::get().copy_to_host(host.data(), reinterpret_cast<DevicePointer>(numbers.data), host.size()),
          "reading the lengths");
    numbers.data = host.data();
  }

  Params params_;
  std::list<std::vector<std::byte>> host_;
};

}  // namespace

void run(const Problem& problem, const Params& params, const Expressions& expressions, void* stream,
         const Workspace& workspace) {
  const CurrentDevice current(problem.device.index);
  const Sequence sequence(problem, params, Operands(problem, params), expressions, target_of(problem.device.index).gpu);
  const auto kernels = find_kernels(sequence.steps, expressions, problem.device.index, static_cast<Stream>(stream));
  Call(problem, params, static_cast<Stream>(stream), sequence).run(kernels, workspace);
}

int64_t workspace_bytes(const Problem& problem, const Params& params, const Expressions& expressions) {
  const Operands operands(problem, params);
  return plan_of(problem, params, operands, expressions.function, target_of(problem.device.index).gpu).workspace.bytes;
}

MaskPreparation::MaskPreparation(const std::vector<Call>& calls, const Expressions& expressions)
    : expressions_(expressions) {
  const Call& first = calls.front();
  tiles_.call = plan::ListedCall::of(first.problem, expressions.mask->identity());
  const plan::Gpu gpu = target_of(first.problem.device.index).gpu;
  for (const Call& call : calls) {
    const Operands operands(call.problem, call.params);
    const plan::GpuPlan of_call = plan_of(call.problem, call.params, operands, expressions_of(call).function, gpu);
    plan::GpuPlan lists = families::plan_prepared_lists(call.problem, of_call, tiles_);
    if (!lists.list_steps.empty()) rounds_.push_back({call, std::move(lists)});
  }
  // The rounds run one after the other, and locate the sequences in the same memory.
  const int64_t bytes_of_lists = tiles_.bytes;
  for (Round& round : rounds_) {
    round.plan.workspace = {};
    round.plan.workspace.bytes = bytes_of_lists;
    reserve_sequences(round.call.problem, round.plan);
    tiles_.bytes = std::max(tiles_.bytes, round.plan.workspace.bytes);
  }
}

void MaskPreparation::run(void* data, void* stream) const {
  const int device = rounds_.front().call.problem.device.index;
  const CurrentDevice current(device);
  for (const Round& round : rounds_) {
    const auto& [problem, params, function] = round.call;
    const Sequence sequence(problem, params, round.plan);
    const auto kernels = find_kernels(sequence.steps, expressions_of(round.call), device, static_cast<Stream>(stream));
    cuda::Call(problem, params, static_cast<Stream>(stream), sequence).run(kernels, {data, tiles_.bytes});
  }
}

std::vector<plan::GpuStep> steps_ahead(const Problem& problem, const Params& params, const Expressions& expressions,
                                       const plan::Gpu& gpu, Lengths lengths) {
  const Operands operands(problem, params);
  std::vector<plan::GpuStep> steps;
  const auto add = [&](const plan::GpuStep& step, int64_t work) {
    const bool is_known = std::any_of(steps.begin(), steps.end(),
                                      [&](const plan::GpuStep& known) { return known.kernel == step.kernel; });
    if (!is_known) steps.push_back({step.kernel, work});
  };
  for (const plan::GpuStep& step : Sequence(problem, params, operands, expressions, gpu).steps) add(step, step.work);
  if (lengths == Lengths::these) return steps;
  Problem any_lengths = problem;
  any_lengths.prepared = nullptr;  // the lists of other lengths
  const auto add_steps_of = [&](const Problem& other, const Params& tensors) {
    try {
      for (const plan::GpuStep& step : Sequence(other, tensors, operands, expressions, gpu).steps) add(step, 0);
    } catch (const Error&) {
      // The GPU has too little shared memory for such lengths. A call with them throws this error itself.
    }
  };
  plan::visit_representatives(any_lengths, params, expressions.function, gpu, add_steps_of);
  return steps;
}

std::vector<CompiledKernel> compile(const Problem& problem, const Params& params, const Expressions& expressions,
                                    const CompileOptions& options) {
  const bool is_for_device = options.architecture.empty();
  const Target target = is_for_device ? target_of(problem.device.index) : target_of(options.architecture);
  const auto steps = steps_ahead(problem, params, expressions, target.gpu, options.lengths);
  std::vector<CompiledKernel> compiled = compile_ahead(steps, expressions, target.architecture, options.progress);
  if (is_for_device) {
    const CurrentDevice current(problem.device.index);
    load_kernels(steps, compiled, expressions, problem.device.index);
  }
  return compiled;
}

Plan explain(const Problem& problem, const Params& params, const Expressions& expressions,
             const std::string& architecture) {
  const Target target = architecture.empty() ? target_of(problem.device.index) : target_of(architecture);
  const Sequence sequence(problem, params, Operands(problem, params), expressions, target.gpu);
  const plan::GpuPlan& chosen = sequence.plan;
  // The first that computes products; the schedule of the Hopper backward runs before it.
  const plan::GpuStep& first =
      *std::find_if(sequence.steps.begin(), sequence.steps.end(), [](const plan::GpuStep& step) {
        return plan::has_function(step.kernel.kind) && step.kernel.kind != plan::KernelKind::check_indices;
      });
  Plan plan;
  plan.direction = problem.direction;
  plan.kernel = describe(first.kernel);
  plan.schedule = "tiles found on the device";
  plan.reason = chosen.reason;
  plan.tile_queries = first.kernel.tile_queries;
  plan.tile_keys = first.kernel.tile_keys;
  plan.units = first.work;
  plan.workspace_bytes = chosen.workspace.bytes;
  plan.deterministic = chosen.deterministic;
  for (const CompiledKernel& compiled : compile_kernels(sequence.steps, expressions, target.architecture)) {
    if (compiled.kernel.name == describe(first.kernel)) plan.threads = compiled.kernel.threads;
    plan.kernels.push_back(compiled.kernel);
  }
  const HostLengths host(problem, params);
  plan.flops = plan::flops_of(problem, host.params());
  plan.bytes = plan::traffic_of(problem, host.params());
  return plan;
}

}  // namespace gdpa::cuda
