// Products: WGMMA with operands in shared memory (given by descriptors), mma.sync, and the instructions that move 8 x 8
// matrices between shared memory and registers. WGMMA is asynchronous: each warp's part of a product reads shared
// memory and registers, and writes its sums, at random times before the program has waited for it. Sums are fp32 and
// add one product after another.
#include <array>
#include <optional>
#include <string_view>

#include "numbers.h"
#include "operations.h"

namespace gdpa::emulator {

namespace {

constexpr unsigned depth = 16, most_columns = 256;  ///< of one WGMMA of 16-bit elements

/// An operand of WGMMA in shared memory: where element (row or column, k) of it lies.
class Described {
 public:
  Described(std::uint64_t descriptor, bool is_transposed)
      : begin_(field(descriptor, 0)),
        leading_(field(descriptor, 16)),
        stride_(field(descriptor, 32)),
        is_transposed_(is_transposed) {
    if (descriptor >> 62 != 1) throw Fault("an operand descriptor with another swizzle than 128 bytes");
    if ((descriptor >> 49 & 7) != 0) throw Fault("an operand descriptor with a base offset");
  }

  std::uint64_t address(unsigned row, unsigned k) const {
    constexpr unsigned row_bytes = 128, row_elements = 64;
    const std::uint64_t linear = is_transposed_ ? begin_ + row / row_elements * leading_ + k / 8 * stride_ +
                                                      k % 8 * row_bytes + row % row_elements * 2
                                                : begin_ + row / 8 * stride_ + row % 8 * row_bytes + k * 2;
    return linear ^ (linear >> 7 & 7) << 4;
  }

 private:
  static std::uint64_t field(std::uint64_t descriptor, unsigned at) { return (descriptor >> at & 0x3fff) << 4; }
  std::uint64_t begin_, leading_, stride_;
  bool is_transposed_;
};

template <class Element>
float element_at(Cta& cta, std::uint64_t address) {
  std::uint16_t bits;
  std::memcpy(&bits, cta.shared(address, sizeof bits), sizeof bits);
  return Element::to_float(bits);
}

__attribute__((target_clones("avx2", "default"))) void add_row(float* sums, float a, const float* b, unsigned columns) {
  for (unsigned n = 0; n < columns; ++n) sums[n] += a * b[n];
}

/// The operands of a wgmma.mma_async (A may be in registers), and its effect on the sums.
struct WarpgroupProduct {
  unsigned columns;
  bool adds;
  std::optional<Described> a;
  Described b;
};

/// A warp's 16 rows of the 64: {sums}, descriptor or four registers of A, ...
template <class Element>
void compute(Warp& warp, const Instruction& i, const WarpgroupProduct& product) {
  const unsigned columns = product.columns, sums = columns / 2;
  Cta& cta = warp.cta();
  std::array<std::array<float, depth>, 16> a;
  if (product.a) {
    for (unsigned row = 0; row < 16; ++row) {
      for (unsigned k = 0; k < depth; ++k) {
        a[row][k] = element_at<Element>(cta, product.a->address(warp.index() % 4 * 16 + row, k));
      }
    }
  } else {
    for (unsigned part = 0; part < 4; ++part) {
      const auto* const pairs = warp.read<std::uint32_t>(i.operands[sums + part]);
      for (unsigned lane = 0; lane < lanes; ++lane) {
        const unsigned row = lane / 4 + part % 2 * 8, k = lane % 4 * 2 + part / 2 * 8;
        a[row][k] = Element::to_float(static_cast<std::uint16_t>(pairs[lane]));
        a[row][k + 1] = Element::to_float(static_cast<std::uint16_t>(pairs[lane] >> 16));
      }
    }
  }
  static thread_local std::array<std::array<float, most_columns>, depth> b;
  static thread_local std::array<std::array<float, most_columns>, 16> c;
  for (unsigned k = 0; k < depth; ++k) {
    for (unsigned n = 0; n < columns; ++n) b[k][n] = element_at<Element>(cta, product.b.address(n, k));
  }
  const auto place_of = [](unsigned lane, unsigned sum) {
    return std::pair{lane / 4 + sum / 2 % 2 * 8, sum / 4 * 8 + lane % 4 * 2 + sum % 2};
  };
  for (unsigned sum = 0; sum < sums; ++sum) {
    const float* const from = warp.read<float>(i.operands[sum]);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const auto [row, column] = place_of(lane, sum);
      c[row][column] = product.adds ? from[lane] : 0;
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < depth; ++k) add_row(c[row].data(), a[row][k], b[k].data(), columns);
  }
  for (unsigned sum = 0; sum < sums; ++sum) {
    float* const to = warp.write<float>(i.operands[sum]);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const auto [row, column] = place_of(lane, sum);
      to[lane] = c[row][column];
    }
  }
}

/// wgmma.mma_async: {sums}, descriptor or four registers of A, descriptor of B, whether to add, two signs, and of each
/// operand in shared memory whether it is transposed. `detail` is the columns.
template <class Element>
Outcome multiply_of_warpgroup(Warp& warp, const Instruction& i, std::uint32_t) {
  const auto columns = static_cast<unsigned>(i.detail);
  const std::size_t sums = columns / 2;
  const bool a_is_in_registers = i.operands[sums + 1].bytes == 4;
  const std::size_t b_at = sums + (a_is_in_registers ? 4 : 1), flags_at = b_at + 4;
  const auto number = [&](std::size_t at) { return warp.number(i.operands.at(at), 0); };
  if (number(b_at + 2) != 1 || number(b_at + 3) != 1) throw Fault("a product with a sign");
  std::optional<Described> a;
  if (!a_is_in_registers) a.emplace(number(sums), number(flags_at) != 0);
  const Described b(number(b_at), number(flags_at + (a_is_in_registers ? 0 : 1)) != 0);
  const bool adds = (warp.predicate(i.operands[b_at + 1]) & 1) != 0;
  warp.start_product(
      [&warp, &i, product = WarpgroupProduct{columns, adds, a, b}] { compute<Element>(warp, i, product); });
  return Outcome::next;
}

/// mma.sync m16n8k16 of 16-bit elements, m16n8k8 of tf32: {d}, {a}, {b}, {c}.
template <class Element, unsigned elements_of_register>
Outcome multiply_of_warp(Warp& warp, const Instruction& i, std::uint32_t) {
  constexpr unsigned deep = 8 * elements_of_register, columns = 8;
  std::array<std::array<float, deep>, 16> a;
  std::array<std::array<float, columns>, deep> b;
  const auto element = [](std::uint32_t bits, unsigned part) {
    if constexpr (elements_of_register == 1) {
      return Element::to_float(bits);
    } else {
      return Element::to_float(static_cast<std::uint16_t>(bits >> 16 * part));
    }
  };
  for (unsigned which = 0; which < 4; ++which) {
    const auto* const from = warp.read<std::uint32_t>(i.operands[4 + which]);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const unsigned row = lane / 4 + which % 2 * 8, k = (lane % 4 + which / 2 * 4) * elements_of_register;
      for (unsigned part = 0; part < elements_of_register; ++part) a[row][k + part] = element(from[lane], part);
    }
  }
  for (unsigned which = 0; which < 2; ++which) {
    const auto* const from = warp.read<std::uint32_t>(i.operands[8 + which]);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const unsigned k = (lane % 4 + which * 4) * elements_of_register;
      for (unsigned part = 0; part < elements_of_register; ++part) b[k + part][lane / 4] = element(from[lane], part);
    }
  }
  const auto place_of = [](unsigned lane, unsigned sum) {
    return std::pair{lane / 4 + sum / 2 * 8, lane % 4 * 2 + sum % 2};
  };
  std::array<std::array<float, columns>, 16> c;
  for (unsigned sum = 0; sum < 4; ++sum) {
    const float* const from = warp.read<float>(i.operands[10 + sum]);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const auto [row, column] = place_of(lane, sum);
      c[row][column] = from[lane];
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < deep; ++k) {
      for (unsigned column = 0; column < columns; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (unsigned sum = 0; sum < 4; ++sum) {
    float* const to = warp.write<float>(i.operands[sum]);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const auto [row, column] = place_of(lane, sum);
      to[lane] = c[row][column];
    }
  }
  return Outcome::next;
}

/// ldmatrix: {registers}, address.
template <bool transposes>
Outcome load_matrices(Warp& warp, const Instruction& i, std::uint32_t) {
  const std::size_t matrices = i.operands.size() - 1;
  for (std::size_t matrix = 0; matrix < matrices; ++matrix) {
    std::array<std::array<std::uint16_t, 8>, 8> rows;
    for (unsigned row = 0; row < 8; ++row) {
      const std::uint64_t address = warp.address(i.operands.back(), static_cast<unsigned>(matrix) * 8 + row);
      std::memcpy(rows[row].data(), warp.cta().shared(address, 16), 16);
    }
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const unsigned group = lane / 4, pair = lane % 4 * 2;
      const std::uint32_t low = transposes ? rows[pair][group] : rows[group][pair];
      const std::uint32_t high = transposes ? rows[pair + 1][group] : rows[group][pair + 1];
      warp.set_number(i.operands[matrix], lane, low | high << 16);
    }
  }
  return Outcome::next;
}

/// stmatrix: address, {registers}.
Outcome store_matrices(Warp& warp, const Instruction& i, std::uint32_t) {
  for (std::size_t matrix = 0; matrix + 1 < i.operands.size(); ++matrix) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const std::uint64_t row = warp.address(i.operands[0], static_cast<unsigned>(matrix) * 8 + lane / 4);
      const auto pair = static_cast<std::uint32_t>(warp.number(i.operands[matrix + 1], lane));
      std::memcpy(warp.cta().shared(row, 16) + lane % 4 * 4, &pair, sizeof pair);
    }
  }
  return Outcome::next;
}

/// movmatrix.trans: register, register.
Outcome transpose_matrix(Warp& warp, const Instruction& i, std::uint32_t) {
  std::array<std::array<std::uint16_t, 8>, 8> rows;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const auto pair = static_cast<std::uint32_t>(warp.number(i.operands[1], lane));
    std::memcpy(&rows[lane / 4][lane % 4 * 2], &pair, sizeof pair);
  }
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    warp.set_number(i.operands[0], lane, std::uint32_t{rows[pair][group]} | std::uint32_t{rows[pair + 1][group]} << 16);
  }
  return Outcome::next;
}

Outcome commit_products(Warp& warp, const Instruction&, std::uint32_t) {
  warp.commit_products();
  warp.cta().machine().note_event();
  return Outcome::next;
}

/// A product is of four warps: it is over for all of them at once, not before each has come to it, and not at once.
Outcome wait_for_products(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto pending = static_cast<unsigned>(warp.number(i.operands[0], 0));
  if (warp.product_groups() <= pending) return Outcome::next;
  const unsigned over = warp.product_groups() - pending;
  const unsigned first = warp.index() / 4 * 4;
  bool has_come = true, has_products = false;
  for (unsigned member = first; member < first + 4; ++member) {
    const Warp& other = warp.cta().warps().at(member);
    has_come = has_come && other.product_groups() >= over;
    has_products = has_products || other.has_products(over);
  }
  Machine& machine = warp.cta().machine();
  if (!has_come || (has_products && machine.random_below(machine.pace().turns_of_product) != 0)) {
    if (has_come) machine.note_event();  // it will be over, if not now
    warp.stall(active);
    return Outcome::retry_later;
  }
  for (unsigned member = first; member < first + 4; ++member) warp.cta().warps()[member].finish_products(over);
  return Outcome::next;
}

Outcome nothing(Warp&, const Instruction&, std::uint32_t) { return Outcome::next; }

}  // namespace

Execute products(Instruction& instruction, const Name& name) {
  const std::string_view base = name.base();
  if (base != "wgmma" && base != "mma" && base != "ldmatrix" && base != "stmatrix" && base != "movmatrix") {
    return nullptr;
  }
  instruction.together = Together::all;
  name.may_have({"sync", "aligned"});
  if (base == "wgmma" && name.has("mma_async") && name.size() == 8) {
    // .m64n128k16.f32.bf16.bf16
    const std::string_view shape = name[4];
    if (!shape.starts_with("m64n") || !shape.ends_with("k16") || name[5] != "f32" || name[6] != name[7]) return nullptr;
    instruction.detail = std::stoi(std::string(shape.substr(4)));
    return name[6] == "bf16"  ? &multiply_of_warpgroup<BFloat16>
           : name[6] == "f16" ? &multiply_of_warpgroup<Float16>
                              : nullptr;
  }
  if (base == "wgmma" && name.has("fence")) return &nothing;
  if (base == "wgmma" && name.has("commit_group")) return &commit_products;
  if (base == "wgmma" && name.has("wait_group")) return &wait_for_products;
  if (base == "mma" && name.has("row") && name.has("col") && name.type() == "f32" && name.size() == 10 &&
      name[6] == "f32" && name[7] == name[8]) {
    if (name.has("m16n8k16") && name[7] == "bf16") return &multiply_of_warp<BFloat16, 2>;
    if (name.has("m16n8k16") && name[7] == "f16") return &multiply_of_warp<Float16, 2>;
    if (name.has("m16n8k8") && name[7] == "tf32") return &multiply_of_warp<TensorFloat32, 1>;
  }
  name.may_have({"m8n8", "x1", "x2", "x4", "shared", "shared::cta"});
  if (base == "ldmatrix" && name.type() == "b16") {
    return name.has("trans") ? &load_matrices<true> : &load_matrices<false>;
  }
  if (base == "stmatrix" && name.type() == "b16") return &store_matrices;
  if (base == "movmatrix" && name.has("trans") && name.type() == "b16") return &transpose_matrix;
  return nullptr;
}

}  // namespace gdpa::emulator
