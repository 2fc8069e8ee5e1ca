// The parts of the checks of a call. Each part has a file of its own, and checks.cpp calls them in order.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "api/checks.h"
#include "api/view.h"

namespace gdpa::api {

/// The properties that all operands of a call have in common.
struct Common {
  DType dtype;
  Device device;
  bool needs_data;         ///< null data is refused
  bool is_on_gpu = false;  ///< the limits of GPU kernels hold, also if the operands of a plan are on the CPU
  std::string_view whose = "as the query's";  ///< the device, in messages

  bool is_on_cpu() const { return device.kind == DeviceKind::cpu; }
};

// --- operands (operand_checks.cpp) -------------------------------------------------------------------------------

/// Sizes of 0 or more, the common device, and an address if it is needed.
void check_memory(std::string_view who, const TensorView& view, const Common& common);

/// Rank 3 or 4, the common type, the last stride 1.
void check_operand(std::string_view who, const TensorView& view, const Common& common);
void check_last_stride(std::string_view who, const TensorView& view);

/// Refuses an output with two elements at one address.
void check_no_overlap(std::string_view who, const TensorView& view);

/// Refuses types and head dims that the GPU kernels do not support.
void check_fits_gpu(const TensorView& query, const TensorView& value);

/// Checks query, key and value together: ranks, head dims, heads, and the sizes of key and value.
void check_shapes(const TensorView& query, const TensorView& key, const TensorView& value);

void check_finite(std::string_view who, double number);

/// Returns the strides of an operand. If it has no batch dimension, one batch entry follows another after
/// `batch_stride` elements.
Operand operand_of(const TensorView& view, int64_t batch_stride = 0);

// --- sequences (sequence_checks.cpp) -----------------------------------------------------------------------------

/// One side of the problem.
struct Side {
  std::string_view operand;       ///< "query" or "key"
  std::string_view offsets_name;  ///< of the tensor with its lengths, or with its begins and ends
  Form form = Form::shared;
  int64_t batch = 0;  ///< its sequences, unless it is shared
  int64_t rows = 0;
  bool has_gaps = false;
  Sequences sequences = {};

  bool has_batch() const { return form != Form::shared; }
};

/// The sides of a call, its batch, and the rows of its output (of output_offsets).
struct Sides {
  Side queries, keys;
  int64_t batch = 0;
  Sequences outputs = {};
};

/// Checks all tensors that say where sequences are.
Sides check_sides(const Attention& attention, const Common& common, Direction direction);

/// Checks where the rows of each batch entry are in an output of `rows` rows. On a GPU the host does not read the
/// numbers, and kernels clamp them.
void check_output_offsets(const Problem& problem, const Params& params, int64_t rows);

/// Checks that a tensor is a vector with a number for each of these entries.
void check_one_for_each(std::string_view who, const TensorView& view, int64_t entries, std::string_view entry);

// --- out_scale (scale_checks.cpp) --------------------------------------------------------------------------------

/// Checks the numbers of out_scale, and returns them in the form for kernels.
OutputScale output_scale_of(const OutScale& out_scale, const Sides& sides, const Common& common);

/// The distance in memory between the numbers of two rows of the query, in elements.
int64_t row_stride_of(std::string_view who, const TensorView& numbers);

/// Makes out_scale with one number for each query the last tensor of the function, and returns that function. Backward
/// needs it for the gradient of the numbers. On a GPU it always needs it: the kernels multiply the sums of dK and dV,
/// to which many queries add, by one factor at the end.
std::shared_ptr<const activation::Function> multiply_by_row_scale(const activation::Function& function,
                                                                  Problem& problem, Params& params);

/// Checks that multiply_by_row_scale() is possible.
void check_row_scale(const activation::Function& function);

// --- the tensors of an expression (tensor_checks.cpp) --------------------------------------------------------------

/// The words of a message about these tensors.
struct Wording {
  std::string_view expression, tensor, tensors, constructor;
};
constexpr Wording of_function{"activation", "parameter", "parameters", "Activation"};
constexpr Wording of_mask{"mask", "mask parameter", "mask_parameters", "MaskExpression"};

/// Checks the tensors of the call that an expression reads, and binds them. Returns their types, for
/// Problem::tensor_types or Problem::mask_types.
unsigned check_tensors(const Wording& words, const activation::Function& function,
                       const std::vector<Parameter>& parameters, const Common& common, const Problem& problem,
                       BoundTensors& bound);

NumberType number_type_of(DType dtype);
BoundTensor bound_tensor_of(const TensorView& view);

// --- masks (mask_checks.cpp) ---------------------------------------------------------------------------------------

void check_window(const Mask& mask);

/// Checks that a mask expression is the only mask, and fills in its members of the problem and its tensors.
void check_mask_expression(const Attention& attention, const Common& common, Problem& problem, Params& params);

/// Checks that the call is one for which the mask was prepared, and returns its lists.
std::shared_ptr<const plan::PreparedTiles> check_prepared_mask(const Attention& attention, const Problem& problem,
                                                               bool needs_data);

// --- results (result_checks.cpp) -----------------------------------------------------------------------------------

/// Checks the output and fills in its address.
void check_output(const Attention& attention, const MutableTensorView& output, CheckedCall& call);

/// Checks the gradient of the output and the gradients that backward computes, fills in their addresses, and returns
/// which gradients are wanted.
WantedGradients check_gradients(const Attention& attention, const Gradients& gradients, CheckedCall& call);

}  // namespace gdpa::api
