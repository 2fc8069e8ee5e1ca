// Config::Layout of kernels with TMA, for dense and for packed operands: also the coordinates of rows in tensor maps.
#pragma once

#include "common/packed_layout.cuh"
#include "pipeline/arguments.cuh"

namespace gdpa::pipeline {

struct PackedLayout : gdpa::PackedLayout {
  /// The map coordinates of row `row` of batch entry b, whose rows are `rows` (tensor_map.cuh).
  __device__ static MapOrigin origin_of(const MappedOperand& operand, const Sequences& side, const Rows& rows,
                                        int64_t b, int row) {
    if (!is_jagged(side)) return {row, static_cast<int>(side.sequence(b)) * operand.batch_step};
    return {operand.extent - rows.count + row, static_cast<int>(rows.begin) + rows.count};
  }

  /// The same for O or dO of a batch entry whose queries are `rows`.
  __device__ static MapOrigin output_origin_of(const MappedOperand& operand, const Params& params, const Rows& rows,
                                               int64_t b, int row) {
    return origin_of(operand, params.queries, rows, b, row);
  }

  /// The map coordinates of the row that is `offset` rows after another row of the same sequence.
  __device__ static MapOrigin after(const MapOrigin& at, int offset) { return {at.x + offset, at.y}; }

  /// The rows of a tile of keys, `offset` rows after the row at the origin of a query tile.
  struct KeyRows {
    int offset;

    /// Starts the TMA loads of the rows of K or V, whose origin is `origin`.
    template <class Tile>
    __device__ void load(const Tile& to, const MappedOperand& operand, unsigned barrier, int head,
                         const MapOrigin& origin) const {
      to.load(operand.map, barrier, head, after(origin, offset));
    }
  };

  /// The rows that the key tile of a query tile has in the map of K or V. Called before the wait for the memory of the
  /// tile.
  template <int tile_keys, class QueryTile>
  __device__ static KeyRows key_rows(const MappedOperand& /*operand*/, const Sequences& /*keys*/,
                                     const QueryTile& /*tile*/, int offset) {
    return {offset};
  }

  /// The offset in elements, from the operand's data, of the row of a head at these map coordinates.
  __device__ static int64_t offset_at(const MappedOperand& mapped, const Operand& operand, const Sequences& side,
                                      const MapOrigin& at, int head) {
    const bool packed = is_jagged(side);
    const int64_t rows = packed ? int64_t{at.x} - mapped.extent + at.y : at.x;
    return rows * operand.row_stride + (packed ? 0 : at.y * operand.batch_stride) + head * operand.head_stride;
  }
};

/// With output_offsets. The maps of O and dO have the coordinate x of the map of Q.
template <class Operands>
struct WithOutputOffsets : gdpa::WithOutputOffsets<Operands> {
  __device__ static MapOrigin output_origin_of(const MappedOperand& operand, const Params& params, const Rows& rows,
                                               int64_t b, int row) {
    const auto begin = static_cast<int>(params.outputs.begins[b]);
    if (!Operands::is_jagged(params.queries)) return {row, begin};
    return {operand.extent - rows.count + row, begin + rows.count};
  }

  /// The offset in elements, from the data of O, of the row of a head at these map coordinates.
  __device__ static int64_t offset_at(const MappedOperand& mapped, const Operand& operand, const Sequences& queries,
                                      const MapOrigin& at, int head) {
    const int64_t row = int64_t{at.x} + at.y - (Operands::is_jagged(queries) ? mapped.extent : 0);
    return row * operand.row_stride + head * operand.head_stride;
  }
};

/// Of backward with a batch map; see gdpa::MappedLayout.
struct MappedLayout : PackedLayout {
  static constexpr bool has_batch_map = true;
};

}  // namespace gdpa::pipeline
