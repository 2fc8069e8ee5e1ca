// MaskForm: the mask in the specification of a kernel, and Config::Mask in its source. docs/kernels/add-a-mask.md says
// how to add a mask.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <string>

#include "codegen/condition.h"
#include "definition/problem.h"
#include "gpu/config_text.h"
#include "gpu/kernel.h"

namespace gdpa::gpu {

struct MaskForm {
  unsigned mask_types = 0;  ///< of the tensors that a mask expression reads, as in Problem
  int tile_lists = 0;       ///< with a mask expression: the index in Params::tile_lists

  auto operator<=>(const MaskForm&) const = default;
};

/// `tile_lists` is lists_of_tiles() of the tiles of the kernel, or 0 if it has none.
inline MaskForm mask_form_for(const Problem& problem, int tile_lists) { return {problem.mask_types, tile_lists}; }

/// Writes Config::Mask.
inline void write_mask(const MaskForm& form, const Expressions& expressions, ConfigText& config) {
  if (expressions.mask != nullptr) {
    config.type_of_header("Mask", fmt::format("gdpa::ExpressionMask<::Condition, {}>", form.tile_lists),
                          "common/expression_mask.cuh");
  } else {
    config.type_of_header("Mask", "gdpa::WindowMask", "common/window_mask.cuh");
  }
}

/// The struct Condition of a mask expression; empty without one.
inline std::string condition_of(const MaskForm& form, const Expressions& expressions) {
  if (expressions.mask == nullptr) return {};
  return "#include \"common/fragment_columns.cuh\"\n#include \"common/index.cuh\"\n" +
         activation::condition_source(*expressions.mask, form.mask_types);
}

}  // namespace gdpa::gpu
