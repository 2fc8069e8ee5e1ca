// Products of tiles with libxsmm. libxsmm generates machine code at the first product of each shape. Later products of
// this shape look up the code in a hash table.
#pragma once

#include <cstdint>

#include "cpu/convert.h"

namespace gdpa::cpu {

/// Throws Error (runtime): the processor lacks instructions, or the system forbids code generation at run time.
[[noreturn]] void refuse_system();

enum class Sum { overwrite, add };
enum class Left { as_stored, transposed };

/// result (rows x columns) = or += left (rows x depth) * right (depth x columns). A transposed left is stored as
/// (depth x rows). Throws Error (runtime) if the system forbids code generation at run time.
template <class Compute>
void multiply(Tile<const Compute> left, Tile<const Compute> right, Tile<Compute> result, std::int64_t rows,
              std::int64_t columns, std::int64_t depth, Sum sum, Left form = Left::as_stored);

}  // namespace gdpa::cpu
