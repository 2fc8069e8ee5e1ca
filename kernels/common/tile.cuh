// Tiles of operands in shared memory, and the copies between global memory, shared memory and the fragments of the
// tensor cores. Rows are padded to an odd number of 16-byte chunks: a matrix load reads the same chunk of eight rows,
// and these chunks are then in eight different bank groups.
#pragma once

#include "common/elementary.cuh"
#include "common/lanes.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "definition/layout.h"

namespace gdpa {

/// The index of the warp. The shuffle tells the compiler that the value is warp-uniform, so that values that depend on
/// it need no vector registers (CUTLASS: canonical_warp_idx).
__device__ inline int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0); }

/// Row-major elements at a shared-memory address. Products read `columns` columns; those beyond the operand's own are
/// 0.
template <class Element_, int columns_>
struct SharedTile {
  using Element = Element_;
  static constexpr int columns = columns_;
  static constexpr int row_chunks = columns / chunk_elements<Element>;
  static constexpr int pitch = (row_chunks | 1) * 16;  ///< bytes from row to row
  GDPA_HOST_DEVICE static constexpr int bytes(int rows) { return rows * pitch; }

  unsigned base;

  __device__ unsigned address(int row, int column) const {
    return base + static_cast<unsigned>(row * pitch + column * Element::bytes);
  }
  __device__ SharedTile from(int row, int column) const { return {address(row, column)}; }
  __device__ SharedTile from_row(int row) const { return from(row, 0); }
};

// --- global to shared ------------------------------------------------------------------------------------------------

/// Sixteen bytes of elements. Without `aligned`, they may lie at any address.
template <bool aligned, class Storage>
__device__ uint4 load_chunk(const Storage* source) {
  if constexpr (aligned) return *reinterpret_cast<const uint4*>(source);
  uint4 chunk;
  auto* elements = reinterpret_cast<Storage*>(&chunk);
  for (int i = 0; i < 16 / static_cast<int>(sizeof(Storage)); ++i) elements[i] = source[i];
  return chunk;
}

template <bool aligned, class Storage>
__device__ void store_chunk(Storage* destination, const uint4& chunk) {
  if constexpr (aligned) {
    *reinterpret_cast<uint4*>(destination) = chunk;
  } else {
    const auto* elements = reinterpret_cast<const Storage*>(&chunk);
    for (int i = 0; i < 16 / static_cast<int>(sizeof(Storage)); ++i) destination[i] = elements[i];
  }
}

/// The numbers of one chunk, rounded.
template <class Element>
__device__ uint4 round_chunk(const float* value) {
  if constexpr (Element::bytes == 2) {
    return {Element::pack(value[0], value[1]), Element::pack(value[2], value[3]), Element::pack(value[4], value[5]),
            Element::pack(value[6], value[7])};
  } else {
    return {__float_as_uint(value[0]), __float_as_uint(value[1]), __float_as_uint(value[2]), __float_as_uint(value[3])};
  }
}

/// The threads of the CTA copy `rows` rows of `valid_columns` elements. Rows from `valid_rows` on and columns from
/// `valid_columns` on become zeros, and nothing is read for them. With `aligned`, every row begins at a multiple of 16
/// bytes and the copy is asynchronous; otherwise elements are read one by one. In both cases the caller commits the
/// copies, waits for them, and needs a barrier before the tile is read.
template <int threads, bool aligned, int rows, int valid_columns, class Tile>
__device__ void load_rows(Tile tile, const typename Tile::Element::Storage* source, int64_t row_stride,
                          int valid_rows) {
  // Each thread copies one column of chunks, so that its addresses advance by constants. A remainder of threads is
  // idle.
  constexpr int step = threads / Tile::row_chunks;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = thread / Tile::row_chunks;
  const int column = thread % Tile::row_chunks * chunk_elements<typename Tile::Element>;
  if (threads % Tile::row_chunks != 0 && first_row >= step) return;
  const bool valid_column = valid_columns == Tile::columns || column < valid_columns;
  const auto* from = source + first_row * row_stride + column;
  const unsigned to = tile.address(first_row, column);
  const int rows_left = valid_column ? valid_rows - first_row : 0;
#pragma unroll
  for (int row = 0; row < rows; row += step) {
    if (rows % step != 0 && first_row + row >= rows) break;
    const bool valid = row < rows_left;
    if constexpr (aligned) {
      copy_async(to + static_cast<unsigned>(row * Tile::pitch), from, valid);
    } else {
      store_shared_chunk(to + static_cast<unsigned>(row * Tile::pitch),
                         valid ? load_chunk<false>(from) : uint4{0, 0, 0, 0});
    }
    from += step * row_stride;
  }
}

/// Makes the tile of a stage readable by all threads, and calls load(), which begins the copy of a later tile into the
/// buffer of the previous one. With one stage, load() copies the tile itself. By the CTA.
template <int stages, class Load>
__device__ void advance_stage(Load load) {
  if constexpr (stages == 1) {
    __syncthreads();  // every warp has read the previous tile
    load();
    wait_for_copies<0>();
    __syncthreads();
  } else {
    wait_for_copies<stages - 2>();
    __syncthreads();  // every thread's copies of this stage are complete, and every warp has read the previous stage
    load();
  }
}

// --- shared to fragments ---------------------------------------------------------------------------------------------
// The order of a product's depth over the lanes is free, as long as A and B have the same order. 16-bit elements, and
// rows that are not transposed, have the hardware's order. No matrix load transposes a 32-bit operand. It is
// read in the order of an accumulator's columns (2 t, then 2 t + 1), so that an accumulator can be the other operand
// without a shuffle.

/// A (16 x depth) from rows [row, row + 16) at `column`.
template <class Tile>
__device__ FragmentA load_a(Tile tile, int row, int column) {
  const int lane = lane_index();
  FragmentA a;
  load_matrices(a.part, tile.address(lane % 16, lane / 16 * chunk_elements<typename Tile::Element>) +
                            tile.address(row, column) - tile.base);
  return a;
}

/// Two B (depth x 8): column n of B is row n of the tile, rows [row, row + 16).
template <class Tile>
__device__ void load_b(FragmentB (&b)[2], Tile tile, int row, int column) {
  const int lane = lane_index();
  unsigned matrix[4];
  load_matrices(matrix, tile.address(lane / 16 * 8 + lane % 8, lane / 8 % 2 * chunk_elements<typename Tile::Element>) +
                            tile.address(row, column) - tile.base);
  b[0] = {{matrix[0], matrix[1]}};
  b[1] = {{matrix[2], matrix[3]}};
}

/// Two B (depth x 8): row k of B is row k of the tile, columns [column, column + 16).
template <class Tile>
__device__ void load_b_transposed(FragmentB (&b)[2], Tile tile, int row, int column) {
  const int lane = lane_index();
  if constexpr (Tile::Element::bytes == 2) {
    unsigned matrix[4];
    load_matrices_transposed(matrix, tile.address(lane % 16, lane / 16 * 8) + tile.address(row, column) - tile.base);
    b[0] = {{matrix[0], matrix[1]}};
    b[1] = {{matrix[2], matrix[3]}};
  } else {
    const unsigned from = tile.address(lane % 4 * 2, lane / 4) + tile.address(row, column) - tile.base;
    for (int i = 0; i < 2; ++i) b[i] = {{load_shared(from + i * 32), load_shared(from + i * 32 + Tile::pitch)}};
  }
}

/// A (16 x depth): column k of A is row k of the tile, columns [column, column + 16).
template <class Tile>
__device__ FragmentA load_a_transposed(Tile tile, int row, int column) {
  const int lane = lane_index();
  FragmentA a;
  if constexpr (Tile::Element::bytes == 2) {
    load_matrices_transposed(
        a.part, tile.address(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8) + tile.address(row, column) - tile.base);
  } else {
    const unsigned from = tile.address(lane % 4 * 2, lane / 4) + tile.address(row, column) - tile.base;
    for (int i = 0; i < 4; ++i) a.part[i] = load_shared(from + i % 2 * 32 + i / 2 * Tile::pitch);
  }
  return a;
}

/// A (16 x depth) from rows, in the order of depth of transposed operands.
template <class Tile>
__device__ FragmentA load_a_in_transposed_order(Tile tile, int row, int column) {
  if constexpr (Tile::Element::bytes == 2) return load_a(tile, row, column);
  const int lane = lane_index();
  const unsigned from = tile.address(lane / 4, lane % 4 * 2) + tile.address(row, column) - tile.base;
  FragmentA a;
  for (int i = 0; i < 4; ++i) a.part[i] = load_shared(from + i % 2 * 8 * Tile::pitch + i / 2 * 4);
  return a;
}

// --- accumulators ----------------------------------------------------------------------------------------------------

/// Accumulator of 16 * row_tiles x columns in the registers of one warp.
template <int row_tiles_, int columns_>
struct Accumulator {
  static constexpr int row_tiles = row_tiles_;
  static constexpr int columns = columns_;
  FragmentC at[row_tiles][columns / 8];

  /// The row and the column of element `part` of fragment (row_tile, column_tile).
  static __device__ int row(int row_tile, int part) { return row_tile * 16 + part / 2 * 8 + lane_index() / 4; }
  static __device__ int column(int column_tile, int part) { return column_tile * 8 + lane_index() % 4 * 2 + part % 2; }
};

/// An accumulator rounded to the element type: the A operand of a following product, whose depth is the accumulator's
/// columns. An element of 32 bits is not rounded.
template <class Element, int row_tiles, int columns>
struct Fragments {
  static constexpr int steps = columns / product_depth<Element>;
  FragmentA at[steps][row_tiles];

  /// Sets the four elements of fragment (row_tile, column_tile) of the accumulator; with clamps_at_zero to max(value,
  /// 0).
  template <bool clamps_at_zero = false>
  __device__ void set(int row_tile, int column_tile, const float (&value)[4]) {
    if constexpr (Element::bytes == 2) {
      FragmentA& a = at[column_tile / 2][row_tile];
      a.part[column_tile % 2 * 2] = Element::template pack<clamps_at_zero>(value[0], value[1]);
      a.part[column_tile % 2 * 2 + 1] = Element::template pack<clamps_at_zero>(value[2], value[3]);
    } else {
      FragmentA& a = at[column_tile][row_tile];
      for (int i = 0; i < 4; ++i) {
        a.part[i % 2 * 2 + i / 2] = __float_as_uint(clamps_at_zero ? maximum(value[i], 0.0f) : value[i]);
      }
    }
  }

  /// Writes all elements to the first rows and columns of a tile.
  template <class Tile>
  __device__ void store(Tile tile) const {
    const unsigned to = tile.address(lane_index() / 4, lane_index() % 4 * 2);
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        const FragmentA& a = at[s][r];
        const unsigned address = to + static_cast<unsigned>(r * 16 * Tile::pitch + s * 32);
        if constexpr (Element::bytes == 2) {
          for (int i = 0; i < 4; ++i) store_shared(address + i % 2 * 8 * Tile::pitch + i / 2 * 16, a.part[i]);
        } else {
          for (int i = 0; i < 2; ++i) store_shared(address + i * 8 * Tile::pitch, a.part[i], a.part[i + 2]);
        }
      }
    }
  }
};

/// The number of unrolled steps of depth. fp32 operands are split, which takes registers: more steps would spill.
template <class Element>
constexpr int unrolled_products = Element::bytes == 2 ? 16 : 1;

/// accumulator += A B^T: rows [0, 16 * row_tiles) of `a` by rows [0, columns) of `b`, over the columns of both.
template <class Tile, int row_tiles, int columns>
__device__ void multiply_rows(Accumulator<row_tiles, columns>& accumulator, Tile a, Tile b) {
  using Element = typename Tile::Element;
#pragma unroll(unrolled_products <Element>)
  for (int k = 0; k < Tile::columns; k += product_depth<Element>) {
    FragmentA left[row_tiles];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) left[r] = load_a(a, r * 16, k);
#pragma unroll
    for (int n = 0; n < columns / 16; ++n) {
      FragmentB right[2];
      load_b(right, b, n * 16, k);
#pragma unroll
      for (int r = 0; r < row_tiles; ++r) {
        TensorCore<Element>::multiply_add(accumulator.at[r][n * 2], left[r], right[0]);
        TensorCore<Element>::multiply_add(accumulator.at[r][n * 2 + 1], left[r], right[1]);
      }
    }
  }
}

/// accumulator += A B for one step of depth: fragments by the first rows of `b`, columns [0, columns).
template <class Element, int row_tiles, int columns, class Tile>
__device__ void multiply_step(Accumulator<row_tiles, columns>& accumulator, const FragmentA (&a)[row_tiles], Tile b) {
#pragma unroll
  for (int n = 0; n < columns / 16; ++n) {
    FragmentB right[2];
    load_b_transposed(right, b, 0, n * 16);
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
      TensorCore<Element>::multiply_add(accumulator.at[r][n * 2], a[r], right[0]);
      TensorCore<Element>::multiply_add(accumulator.at[r][n * 2 + 1], a[r], right[1]);
    }
  }
}

/// accumulator += A B: fragments by the rows [0, depth) of `b`, columns [0, columns).
template <class Element, int row_tiles, int depth, int columns, class Tile>
__device__ void multiply_fragments(Accumulator<row_tiles, columns>& accumulator,
                                   const Fragments<Element, row_tiles, depth>& a, Tile b) {
#pragma unroll
  for (int step = 0; step < depth / product_depth<Element>; ++step) {
    // The fp32 products are independent. Without the barrier the compiler starts several steps at once, whose operands
    // do not fit in the registers.
    if constexpr (Element::bytes == 4) __syncwarp();
    multiply_step<Element>(accumulator, a.at[step], b.from_row(step * product_depth<Element>));
  }
}

/// accumulator += A B: rows [0, 16 * row_tiles) of `a` by the rows [0, depth) of `b`, columns [0, columns) of both.
template <int depth, class TileA, class TileB, int row_tiles, int columns>
__device__ void multiply_tiles(Accumulator<row_tiles, columns>& accumulator, TileA a, TileB b) {
  using Element = typename TileA::Element;
#pragma unroll(unrolled_products <Element>)
  for (int k = 0; k < depth; k += product_depth<Element>) {
    FragmentA left[row_tiles];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) left[r] = load_a_in_transposed_order(a, r * 16, k);
    multiply_step<Element>(accumulator, left, b.from_row(k));
  }
}

/// accumulator += A^T B: columns [0, 16 * row_tiles) of `a` by columns [0, columns) of `b`, over rows [0, depth) of
/// both.
template <int depth, class TileA, class TileB, int row_tiles, int columns>
__device__ void multiply_columns(Accumulator<row_tiles, columns>& accumulator, TileA a, TileB b) {
  using Element = typename TileA::Element;
#pragma unroll(unrolled_products <Element>)
  for (int k = 0; k < depth; k += product_depth<Element>) {
    FragmentA left[row_tiles];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) left[r] = load_a_transposed(a, k, r * 16);
    multiply_step<Element>(accumulator, left, b.from_row(k));
  }
}

// --- accumulators to global ------------------------------------------------------------------------------------------

/// One warp writes of_row(row)(sum, column) for each sum of its accumulator, rounded, to the first rows of a tile.
template <class Tile, int row_tiles, int columns, class OfRow>
__device__ void stage_accumulator(const Accumulator<row_tiles, columns>& accumulator, Tile tile, OfRow of_row) {
  using Sums = Accumulator<row_tiles, columns>;
  Fragments<typename Tile::Element, row_tiles, columns> rounded;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    const auto upper = of_row(Sums::row(r, 0)), lower = of_row(Sums::row(r, 2));
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      float value[4];
      for (int i = 0; i < 4; ++i) {
        const float sum = accumulator.at[r][n].part[i];
        value[i] = i < 2 ? upper(sum, Sums::column(n, i)) : lower(sum, Sums::column(n, i));
      }
      rounded.set(r, n, value);
    }
  }
  rounded.store(tile);
}

/// The threads of the CTA write `rows` rows of a tile to global memory, the reverse of load_rows. Rows from
/// `valid_rows` on and columns from `valid_columns` on are not written.
template <int threads, bool aligned, int rows, int valid_columns, class Tile>
__device__ void store_rows(Tile tile, typename Tile::Element::Storage* destination, int64_t row_stride,
                           int valid_rows) {
  constexpr int elements = chunk_elements<typename Tile::Element>;
  constexpr int row_chunks = valid_columns / elements;
  for (int index = static_cast<int>(threadIdx.x); index < rows * row_chunks; index += threads) {
    const int row = index / row_chunks;
    const int column = index % row_chunks * elements;
    if (row >= valid_rows) break;
    store_chunk<aligned>(destination + row * row_stride + column, load_shared_chunk(tile.address(row, column)));
  }
}

/// Calls visit(row, column, values) for the accumulator of one warp, four elements at a time. fp32 workspaces store
/// each group of 16 columns in the order of the lanes, so that each lane writes 16 bytes; `column` is the first of the
/// four positions in this order. column_of() maps a position to its column.
template <int row_tiles, int columns, class Visit>
__device__ void visit_accumulator(const Accumulator<row_tiles, columns>& accumulator, float factor, Visit visit) {
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < columns / 16; ++n) {
        float values[4];
        for (int i = 0; i < 4; ++i) values[i] = accumulator.at[r][n * 2 + i / 2].part[half * 2 + i % 2] * factor;
        visit(Accumulator<row_tiles, columns>::row(r, half * 2), n * 16 + lane_index() % 4 * 4, values);
      }
    }
  }
}

/// The column, within a group of 16 columns, of a position within the group in an fp32 workspace.
__device__ constexpr int column_of(int position) { return position % 4 / 2 * 8 + position / 4 * 2 + position % 2; }

}  // namespace gdpa
