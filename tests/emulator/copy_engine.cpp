// Asynchronous copies: cp.async, boxes of tensors, and contiguous bytes, into and out of shared memory. A copy begins
// at its instruction, and reads and writes at random times until the program waits for it.
#include <string_view>

#include "numbers.h"
#include "operations.h"
#include "tensor_map.h"

namespace gdpa::emulator {

namespace {

using Bytes = std::vector<std::byte>;
using Coordinates = std::array<std::int64_t, 4>;

TensorMap map_at(Warp& warp, std::uint64_t address) {
  TensorMap map;
  std::memcpy(&map, warp.cta().machine().global(address, 128), sizeof map);
  if (map.seal != TensorMap::sealed) throw Fault("no tensor map lies there");
  if (address % 64 != 0) throw Fault("a tensor map that is not aligned to 64 bytes");
  return map;
}

std::size_t box_bytes(const TensorMap& map) {
  std::size_t bytes = map.element_bytes;
  for (const std::uint32_t extent : map.box) bytes *= extent;
  return bytes;
}

constexpr std::uint64_t chunk = 16;  ///< bytes, of which swizzles are made

/// Calls visit(address in shared memory, address in global memory or 0 where the tensor ends) for each chunk.
template <class Visit>
void for_each_chunk(const TensorMap& map, std::uint64_t shared, const Coordinates& at, Visit visit) {
  if (map.extents[0] * map.element_bytes % chunk != 0 || at[0] * map.element_bytes % std::int64_t{chunk} != 0) {
    throw Fault("the emulator copies boxes in units of 16 bytes, which this one is not made of");
  }
  std::uint64_t linear = shared;
  const std::uint64_t permuted = map.swizzle_bytes / chunk;
  const auto chunk_elements = static_cast<std::uint32_t>(chunk / map.element_bytes);
  for (std::uint32_t w = 0; w < map.box[3]; ++w) {
    for (std::uint32_t z = 0; z < map.box[2]; ++z) {
      for (std::uint32_t y = 0; y < map.box[1]; ++y) {
        for (std::uint32_t x = 0; x < map.box[0]; x += chunk_elements, linear += chunk) {
          const Coordinates element = {at[0] + x, at[1] + y, at[2] + z, at[3] + w};
          bool exists = true;
          std::uint64_t address = map.address + static_cast<std::uint64_t>(element[0]) * map.element_bytes;
          for (std::size_t i = 0; i < 4; ++i) {
            exists = exists && element[i] >= 0 && static_cast<std::uint64_t>(element[i]) < map.extents[i];
            if (i > 0) address += static_cast<std::uint64_t>(element[i]) * map.strides[i - 1];
          }
          const std::uint64_t swizzled = permuted == 0 ? linear : linear ^ (linear >> 7 & (permuted - 1)) << 4;
          visit(swizzled, exists ? address : 0);
        }
      }
    }
  }
}

/// Where the box of a tensor lies in shared memory, and which one it is.
struct Box {
  TensorMap map;
  std::uint64_t shared;
  Coordinates at;
};

/// The box at the coordinates that begin with an operand.
Box box_of(Warp& warp, unsigned lane, const Operand& shared, const Operand& map, const Operand* coordinates) {
  Box box{map_at(warp, warp.address(map, lane)), warp.address(shared, lane), {}};
  for (std::size_t d = 0; d < box.at.size(); ++d) {
    box.at[d] = static_cast<std::int32_t>(warp.number(coordinates[d], lane));
  }
  const std::uint64_t unit = box.map.swizzle_bytes == 0 ? 128 : box.map.swizzle_bytes * 8u;
  if (box.shared % unit != 0) throw Fault("a box in shared memory that is not aligned to its swizzle");
  warp.cta().shared(box.shared, 1);
  warp.cta().shared(box.shared + box_bytes(box.map) - 1, 1);
  return box;
}

Bytes read_from_tensor(Cta& cta, const Box& box) {
  Bytes bytes(box_bytes(box.map));
  std::byte* to = bytes.data();
  for_each_chunk(box.map, box.shared, box.at, [&](std::uint64_t, std::uint64_t global) {
    if (global != 0) std::memcpy(to, cta.machine().global(global, chunk), chunk);
    to += chunk;
  });
  return bytes;
}
Bytes read_from_shared(Cta& cta, const Box& box) {
  Bytes bytes(box_bytes(box.map));
  std::byte* to = bytes.data();
  for_each_chunk(box.map, box.shared, box.at, [&](std::uint64_t shared, std::uint64_t) {
    std::memcpy(to, cta.shared(shared, chunk), chunk);
    to += chunk;
  });
  return bytes;
}
void write_to_shared(Cta& cta, const Box& box, const Bytes& bytes) {
  const std::byte* from = bytes.data();
  for_each_chunk(box.map, box.shared, box.at, [&](std::uint64_t shared, std::uint64_t) {
    std::memcpy(cta.shared(shared, chunk), from, chunk);
    from += chunk;
  });
}

void add_elements(const TensorMap& map, std::byte* to, const std::byte* from) {
  for (std::size_t at = 0; at < chunk; at += map.element_bytes) {
    if (map.element_bytes == 4) {
      *reinterpret_cast<float*>(to + at) += *reinterpret_cast<const float*>(from + at);
      continue;
    }
    auto& sum = *reinterpret_cast<std::uint16_t*>(to + at);
    const auto term = *reinterpret_cast<const std::uint16_t*>(from + at);
    sum = map.type == map_type_bfloat16 ? BFloat16::from(BFloat16::to_float(sum) + BFloat16::to_float(term))
                                        : Float16::from(Float16::to_float(sum) + Float16::to_float(term));
  }
}
void write_to_tensor(Cta& cta, const Box& box, bool adds, const Bytes& bytes) {
  const std::byte* from = bytes.data();
  for_each_chunk(box.map, box.shared, box.at, [&](std::uint64_t, std::uint64_t global) {
    if (global != 0) {
      std::byte* const to = cta.machine().global(global, chunk);
      adds ? add_elements(box.map, to, from) : static_cast<void>(std::memcpy(to, from, chunk));
    }
    from += chunk;
  });
}

/// Starts a copy into shared memory. Its bytes arrive at the barrier of an operand.
template <class Read, class Write>
void start_load(Warp& warp, unsigned lane, const Instruction& i, const Operand& of_barrier, Read read, Write write) {
  Cta& cta = warp.cta();
  const std::uint64_t barrier = warp.address(of_barrier, lane);
  cta.barrier(barrier);
  cta.start({&i, read, [&cta, write, barrier](const Bytes& bytes) {
               write(bytes);
               cta.complete(barrier, bytes.size());
             }});
}

/// cp.async.bulk.tensor.4d into shared memory: [shared], [map, {x, y, z, w}], [barrier].
Outcome load_box(Warp& warp, const Instruction& i, std::uint32_t active) {
  Cta& cta = warp.cta();
  for_each_lane(active, [&](unsigned lane) {
    const Box box = box_of(warp, lane, i.operands[0], i.operands[1], &i.operands[2]);
    start_load(
        warp, lane, i, i.operands.at(6), [&cta, box] { return read_from_tensor(cta, box); },
        [&cta, box](const Bytes& bytes) { write_to_shared(cta, box, bytes); });
  });
  return Outcome::next;
}

/// cp.async.bulk.tensor.4d and cp.reduce.async.bulk.tensor.4d out of shared memory: [map, {x, y, z, w}], [shared].
template <bool adds>
Outcome store_box(Warp& warp, const Instruction& i, std::uint32_t active) {
  Cta& cta = warp.cta();
  for_each_lane(active, [&](unsigned lane) {
    const Box box = box_of(warp, lane, i.operands.at(5), i.operands[0], &i.operands[1]);
    warp.copies[lane].open.push_back(
        cta.start({&i, [&cta, box] { return read_from_shared(cta, box); },
                   [&cta, box](const Bytes& bytes) { write_to_tensor(cta, box, adds, bytes); }}));
  });
  return Outcome::next;
}

/// Bytes that a bulk copy moves, some of shared and as many of global memory.
struct Run {
  std::uint64_t global, shared;
  std::size_t bytes;
};
Run run_of(Warp& warp, unsigned lane, const Operand& global, const Operand& shared, const Operand& bytes) {
  const Run run = {warp.address(global, lane), warp.address(shared, lane),
                   static_cast<std::size_t>(warp.number(bytes, lane))};
  if (run.global % chunk != 0 || run.shared % chunk != 0 || run.bytes % chunk != 0) {
    throw Fault("a bulk copy not of 16-byte units");
  }
  if (run.bytes > 0) {
    warp.cta().shared(run.shared, 1);
    warp.cta().shared(run.shared + run.bytes - 1, 1);
  }
  return run;
}

/// cp.async.bulk into shared memory: [shared], [global], bytes, [barrier].
Outcome load_bulk(Warp& warp, const Instruction& i, std::uint32_t active) {
  Cta& cta = warp.cta();
  for_each_lane(active, [&](unsigned lane) {
    const Run run = run_of(warp, lane, i.operands[1], i.operands[0], i.operands[2]);
    if (run.bytes == 0) return;
    const auto read = [&cta, run] {
      const std::byte* const from = cta.machine().global(run.global, run.bytes);
      return Bytes(from, from + run.bytes);
    };
    start_load(warp, lane, i, i.operands.at(3), read,
               [&cta, run](const Bytes& bytes) { std::memcpy(cta.shared(run.shared, 1), bytes.data(), bytes.size()); });
  });
  return Outcome::next;
}

/// cp.async.bulk and cp.reduce.async.bulk .add.f32 out of shared memory: [global], [shared], bytes.
template <bool adds>
Outcome store_bulk(Warp& warp, const Instruction& i, std::uint32_t active) {
  Cta& cta = warp.cta();
  for_each_lane(active, [&](unsigned lane) {
    const Run run = run_of(warp, lane, i.operands[0], i.operands[1], i.operands[2]);
    if (run.bytes == 0) return;
    const auto read = [&cta, run] {
      const std::byte* const from = cta.shared(run.shared, 1);
      return Bytes(from, from + run.bytes);
    };
    const auto write = [&cta, global = run.global](const Bytes& bytes) {
      if constexpr (!adds) {
        std::memcpy(cta.machine().global(global, bytes.size()), bytes.data(), bytes.size());
        return;
      }
      auto* const sums = reinterpret_cast<float*>(cta.machine().global(global, bytes.size()));
      const auto* const terms = reinterpret_cast<const float*>(bytes.data());
      for (std::size_t at = 0; at < bytes.size() / sizeof(float); ++at) sums[at] += terms[at];
    };
    warp.copies[lane].open.push_back(cta.start({&i, read, write}));
  });
  return Outcome::next;
}

/// cp.async of up to 16 bytes a lane: [shared], [global], bytes that are written[, that are read; the others are 0].
/// The lanes' copies are one.
Outcome copy_of_lanes(Warp& warp, const Instruction& i, std::uint32_t active) {
  struct Piece {
    std::uint64_t shared, global;
    std::size_t written, read;
  };
  Cta& cta = warp.cta();
  std::vector<Piece> pieces;
  std::size_t all_bytes = 0;
  for_each_lane(active, [&](unsigned lane) {
    const auto written = static_cast<std::size_t>(warp.number(i.operands[2], lane));
    const auto read = i.operands.size() > 3 ? static_cast<std::size_t>(warp.number(i.operands[3], lane)) : written;
    if (read > written) throw Fault("a copy that reads more than it writes");
    pieces.push_back({warp.address(i.operands[0], lane), warp.address(i.operands[1], lane), written, read});
    cta.shared(pieces.back().shared, written);
    // compute-sanitizer reports a copy that reads a part of its bytes if the others are outside of all memory.
    if (read > 0) cta.generic(pieces.back().global, written);
    all_bytes += written;
  });
  const auto read = [&cta, pieces, all_bytes] {
    Bytes bytes(all_bytes);
    std::byte* to = bytes.data();
    for (const Piece& piece : pieces) {
      if (piece.read > 0) std::memcpy(to, cta.generic(piece.global, piece.read), piece.read);
      to += piece.written;
    }
    return bytes;
  };
  const auto write = [&cta, pieces](const Bytes& bytes) {
    const std::byte* from = bytes.data();
    for (const Piece& piece : pieces) {
      std::memcpy(cta.shared(piece.shared, piece.written), from, piece.written);
      from += piece.written;
    }
  };
  const std::uint64_t number = cta.start({&i, read, write});
  for_each_lane(active, [&](unsigned lane) { warp.copies[lane].open.push_back(number); });
  return Outcome::next;
}

Outcome commit(Warp& warp, const Instruction&, std::uint32_t active) {
  for_each_lane(active, [&](unsigned lane) {
    Warp::Copies& copies = warp.copies[lane];
    copies.groups.push_back(std::exchange(copies.open, {}));
  });
  return Outcome::next;
}

template <bool reading>
Outcome wait(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned lane) {
    std::vector<std::vector<std::uint64_t>>& groups = warp.copies[lane].groups;
    const auto pending = static_cast<std::size_t>(warp.number(i.operands[0], lane));
    const std::size_t over = groups.size() > pending ? groups.size() - pending : 0;
    for (std::size_t group = 0; group < over; ++group) {
      for (const std::uint64_t number : groups[group]) {
        reading ? warp.cta().finish_reading(number) : warp.cta().finish(number);
      }
    }
    if (!reading) groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(over));
  });
  return Outcome::next;
}

}  // namespace

Execute copies(Instruction&, const Name& name) {
  if (name.base() != "cp" || !name.has("async")) return nullptr;
  const bool is_bulk = name.has("bulk");
  if (name.has("commit_group")) return &commit;
  if (name.has("wait_group")) return name.has("read") ? &wait<true> : &wait<false>;
  name.may_have({"global", "shared", "shared::cta", "shared::cluster", "cg", "ca", "tile"});
  if (!is_bulk) return &copy_of_lanes;
  const bool adds = name.has("reduce") && name.has("add");
  if (name.has("tensor") && name.has("4d")) {
    if (name.has("mbarrier::complete_tx::bytes")) return &load_box;
    if (name.has("bulk_group")) return adds ? &store_box<true> : &store_box<false>;
  }
  if (name.has("mbarrier::complete_tx::bytes")) return &load_bulk;
  if (!name.has("bulk_group")) return nullptr;
  if (!adds) return &store_bulk<false>;
  return name.type() == "f32" ? &store_bulk<true> : nullptr;
}

}  // namespace gdpa::emulator
