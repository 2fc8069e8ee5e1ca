// Tiles of operands in shared memory, and the way between them, global memory and the fragments of the tensor cores.
// Rows are padded to an odd number of 16-byte chunks, so that eight rows of one column of chunks, which is what every
// matrix load reads, lie in eight different bank groups.
#pragma once

#include "common/elementary.cuh"
#include "common/lanes.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "definition/layout.h"

namespace gdpa {

/// The index of the warp, the same register in every lane, so that what depends on it needs no vector registers.
__device__ inline int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0); }

/// Row-major elements at a shared-memory address. `columns` is what products read: zeros beyond an operand's own.
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

/// Sixteen bytes of elements that may lie at any address.
template <class Storage>
__device__ uint4 gather_chunk(const Storage* source) {
  uint4 chunk;
  auto* elements = reinterpret_cast<Storage*>(&chunk);
  for (int i = 0; i < 16 / static_cast<int>(sizeof(Storage)); ++i) elements[i] = source[i];
  return chunk;
}

template <class Storage>
__device__ void scatter_chunk(Storage* destination, const uint4& chunk) {
  const auto* elements = reinterpret_cast<const Storage*>(&chunk);
  for (int i = 0; i < 16 / static_cast<int>(sizeof(Storage)); ++i) destination[i] = elements[i];
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

/// The threads of the CTA copy `rows` rows of `valid_columns` elements; rows from `valid_rows` on and columns beyond
/// become zeros, and nothing is read for them. `aligned` promises 16-byte alignment of every row, and copies
/// asynchronously; otherwise elements are read one by one. Either way: commit, wait, and a barrier before reading.
template <int threads, bool aligned, int rows, int valid_columns, class Tile>
__device__ void load_rows(Tile tile, const typename Tile::Element::Storage* source, int64_t row_stride,
                          int valid_rows) {
  // Each thread keeps to one column of chunks, so that its addresses advance by constants; a remainder of threads
  // idles.
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
      store_shared_chunk(to + static_cast<unsigned>(row * Tile::pitch), valid ? gather_chunk(from) : uint4{0, 0, 0, 0});
    }
    from += step * row_stride;
  }
}

// --- shared to fragments ---------------------------------------------------------------------------------------------
// Which element of a product's depth a lane holds is free as long as A and B agree. For 16-bit elements, and for rows
// read as they lie, it is the hardware's order. A transposed 32-bit operand has no matrix load; it is read in the
// order in which sums lie in registers (2 t, then 2 t + 1), so that sums serve as its partner without being moved.

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

/// A (16 x depth) from rows, in the order of depth that transposed operands have.
template <class Tile>
__device__ FragmentA load_a_beside_transposed(Tile tile, int row, int column) {
  if constexpr (Tile::Element::bytes == 2) return load_a(tile, row, column);
  const int lane = lane_index();
  const unsigned from = tile.address(lane / 4, lane % 4 * 2) + tile.address(row, column) - tile.base;
  FragmentA a;
  for (int i = 0; i < 4; ++i) a.part[i] = load_shared(from + i % 2 * 8 * Tile::pitch + i / 2 * 4);
  return a;
}

// --- sums ------------------------------------------------------------------------------------------------------------

/// Sums of 16 * row_tiles x columns in the registers of one warp.
template <int row_tiles_, int columns_>
struct Sums {
  static constexpr int row_tiles = row_tiles_;
  static constexpr int columns = columns_;
  FragmentC at[row_tiles][columns / 8];

  /// The place of part `part` of fragment (row_tile, column_tile).
  static __device__ int row(int row_tile, int part) { return row_tile * 16 + part / 2 * 8 + lane_index() / 4; }
  static __device__ int column(int column_tile, int part) { return column_tile * 8 + lane_index() % 4 * 2 + part % 2; }
};

/// Sums rounded to the element type: the A operand of a next product whose depth runs over their columns. An element
/// of 32 bits is kept as it is.
template <class Element, int row_tiles, int columns>
struct Fragments {
  static constexpr int steps = columns / product_depth<Element>;
  FragmentA at[steps][row_tiles];

  /// Takes the four numbers of the fragment of sums (row_tile, column_tile); the greater of each and 0 where it clamps.
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

  /// Writes all of them to the first rows and columns of a tile.
  template <class Tile>
  __device__ void store(Tile tile) const {
    const unsigned to = tile.address(lane_index() / 4, lane_index() % 4 * 2);
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        const FragmentA& a = at[s][r];
        const unsigned place = to + static_cast<unsigned>(r * 16 * Tile::pitch + s * 32);
        if constexpr (Element::bytes == 2) {
          for (int i = 0; i < 4; ++i) store_shared(place + i % 2 * 8 * Tile::pitch + i / 2 * 16, a.part[i]);
        } else {
          for (int i = 0; i < 2; ++i) store_shared(place + i * 8 * Tile::pitch, a.part[i], a.part[i + 2]);
        }
      }
    }
  }
};

/// How many steps of depth are unrolled. Splitting fp32 operands takes registers: unrolled further, it spills.
template <class Element>
constexpr int unrolled_products = Element::bytes == 2 ? 16 : 1;

/// sums += A B^T: rows [0, 16 * row_tiles) of `a` by rows [0, columns) of `b`, over the columns of both.
template <class Tile, int row_tiles, int columns>
__device__ void multiply_rows(Sums<row_tiles, columns>& sums, Tile a, Tile b) {
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
        TensorCore<Element>::multiply_add(sums.at[r][n * 2], left[r], right[0]);
        TensorCore<Element>::multiply_add(sums.at[r][n * 2 + 1], left[r], right[1]);
      }
    }
  }
}

/// sums += A B for one step of depth: fragments by the first rows of `b`, columns [0, columns).
template <class Element, int row_tiles, int columns, class Tile>
__device__ void multiply_step(Sums<row_tiles, columns>& sums, const FragmentA (&a)[row_tiles], Tile b) {
#pragma unroll
  for (int n = 0; n < columns / 16; ++n) {
    FragmentB right[2];
    load_b_transposed(right, b, 0, n * 16);
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
      TensorCore<Element>::multiply_add(sums.at[r][n * 2], a[r], right[0]);
      TensorCore<Element>::multiply_add(sums.at[r][n * 2 + 1], a[r], right[1]);
    }
  }
}

/// sums += A B: fragments by the rows [0, depth) of `b`, columns [0, columns).
template <class Element, int row_tiles, int depth, int columns, class Tile>
__device__ void multiply_fragments(Sums<row_tiles, columns>& sums, const Fragments<Element, row_tiles, depth>& a,
                                   Tile b) {
#pragma unroll
  for (int step = 0; step < depth / product_depth<Element>; ++step) {
    // The products of fp32 do not depend on each other: the compiler would start those of several steps at once, with
    // more operands than there are registers.
    if constexpr (Element::bytes == 4) __syncwarp();
    multiply_step<Element>(sums, a.at[step], b.from_row(step * product_depth<Element>));
  }
}

/// sums += A B: rows [0, 16 * row_tiles) of `a` by the rows [0, depth) of `b`, columns [0, columns) of both.
template <int depth, class TileA, class TileB, int row_tiles, int columns>
__device__ void multiply_tiles(Sums<row_tiles, columns>& sums, TileA a, TileB b) {
  using Element = typename TileA::Element;
#pragma unroll(unrolled_products <Element>)
  for (int k = 0; k < depth; k += product_depth<Element>) {
    FragmentA left[row_tiles];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) left[r] = load_a_beside_transposed(a, r * 16, k);
    multiply_step<Element>(sums, left, b.from_row(k));
  }
}

/// sums += A^T B: columns [0, 16 * row_tiles) of `a` by columns [0, columns) of `b`, over rows [0, depth) of both.
template <int depth, class TileA, class TileB, int row_tiles, int columns>
__device__ void multiply_columns(Sums<row_tiles, columns>& sums, TileA a, TileB b) {
  using Element = typename TileA::Element;
#pragma unroll(unrolled_products <Element>)
  for (int k = 0; k < depth; k += product_depth<Element>) {
    FragmentA left[row_tiles];
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) left[r] = load_a_transposed(a, k, r * 16);
    multiply_step<Element>(sums, left, b.from_row(k));
  }
}

// --- sums to global --------------------------------------------------------------------------------------------------

/// One warp writes its sums, times `factor` and rounded, to the rows of a tile from its first one on.
template <class Tile, int row_tiles, int columns>
__device__ void stage_sums(const Sums<row_tiles, columns>& sums, float factor, Tile tile) {
  Fragments<typename Tile::Element, row_tiles, columns> rounded;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      float value[4];
      for (int i = 0; i < 4; ++i) value[i] = sums.at[r][n].part[i] * factor;
      rounded.set(r, n, value);
    }
  }
  rounded.store(tile);
}

/// The threads of the CTA write `rows` rows of a tile to global memory: the way back of load_rows. Rows from
/// `valid_rows` on and columns from `valid_columns` on are left alone.
template <int threads, bool aligned, int rows, int valid_columns, class Tile>
__device__ void store_rows(Tile tile, typename Tile::Element::Storage* destination, int64_t row_stride,
                           int valid_rows) {
  constexpr int elements = chunk_elements<typename Tile::Element>;
  constexpr int row_chunks = valid_columns / elements;
  for (int index = static_cast<int>(threadIdx.x); index < rows * row_chunks; index += threads) {
    const int row = index / row_chunks;
    const int column = index % row_chunks * elements;
    if (row >= valid_rows) break;
    auto* to = destination + row * row_stride + column;
    const uint4 chunk = load_shared_chunk(tile.address(row, column));
    if constexpr (aligned) {
      *reinterpret_cast<uint4*>(to) = chunk;
    } else {
      scatter_chunk(to, chunk);
    }
  }
}

/// Calls visit(row, column, values) for the sums of one warp, four at a time, in the order of fp32 workspaces: there a
/// group of 16 columns is kept as lanes hold it, so that every lane moves 16 bytes. `column` is the place of the first
/// of the four; column_of says which columns they are.
template <int row_tiles, int columns, class Visit>
__device__ void visit_sums(const Sums<row_tiles, columns>& sums, float factor, Visit visit) {
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < columns / 16; ++n) {
        float values[4];
        for (int i = 0; i < 4; ++i) values[i] = sums.at[r][n * 2 + i / 2].part[half * 2 + i % 2] * factor;
        visit(Sums<row_tiles, columns>::row(r, half * 2), n * 16 + lane_index() % 4 * 4, values);
      }
    }
  }
}

/// The column, within its group of 16, of place `place` of the group in a workspace.
__device__ constexpr int column_of(int place) { return place % 4 / 2 * 8 + place / 4 * 2 + place % 2; }

}  // namespace gdpa
