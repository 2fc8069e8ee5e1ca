// Moves between registers, and instructions that take numbers for rows of bits.
#include "integers.h"
#include "operations.h"

namespace gdpa::emulator {

namespace {

using std::string_view;
using Word = std::uint32_t;

struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct ShiftLeft {
  template <class T>
  T operator()(T a, Word by) const {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << by);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, Word by) const {
    if (by >= 8 * sizeof(T)) return a < 0 ? static_cast<T>(-1) : T{0};
    return static_cast<T>(a >> by);
  }
};

struct PopulationCount {
  template <class T>
  int operator()(T a) const {
    return __builtin_popcountll(a);
  }
};
struct LeadingZeros {
  template <class T>
  Word operator()(T a) const {
    constexpr Word bits = 8 * sizeof(T);
    return a == 0 ? bits : static_cast<Word>(__builtin_clzll(a)) - (64 - bits);
  }
};
/// bfind: the position of the highest set bit, or its distance from the top; ~0 if no bit is set.
struct HighestPlace {
  template <class T>
  Word operator()(T a) const {
    return a == 0 ? ~Word{0} : 8 * sizeof(T) - 1 - LeadingZeros{}(a);
  }
};
struct HighestShift {
  template <class T>
  Word operator()(T a) const {
    return a == 0 ? ~Word{0} : LeadingZeros{}(a);
  }
};
struct Reversed {
  template <class T>
  T operator()(T a) const {
    T result = 0;
    for (unsigned bit = 0; bit < 8 * sizeof(T); ++bit, a >>= 1) result = static_cast<T>(result << 1 | (a & 1));
    return result;
  }
};

/// Bits [at, at + length) of 64; of both only the low byte counts.
std::uint64_t field_mask(Word at, Word length) {
  at &= 0xff;
  length &= 0xff;
  const std::uint64_t ones = length >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << length) - 1;
  return at >= 64 ? 0 : ones << at;
}
struct ExtractBits {
  template <class T>
  T operator()(T a, Word at, Word length) const {
    return (at & 0xff) >= 8 * sizeof(T) ? T{0} : static_cast<T>((a & field_mask(at, length)) >> (at & 0xff));
  }
};
/// bfi: the low bits of a into b.
struct InsertBits {
  template <class T>
  T operator()(T a, T b, Word at, Word length) const {
    const std::uint64_t mask = field_mask(at, length);
    const std::uint64_t inserted = (at & 0xff) >= 64 ? 0 : std::uint64_t{a} << (at & 0xff);
    return static_cast<T>((b & ~mask) | (inserted & mask));
  }
};
struct PermuteBytes {
  Word operator()(Word a, Word b, Word selector) const {
    const std::uint64_t bytes = a | std::uint64_t{b} << 32;
    Word result = 0;
    for (unsigned byte = 0; byte < 4; ++byte) {
      const Word which = selector >> 4 * byte & 0xf;
      Word value = bytes >> 8 * (which & 7) & 0xff;
      if ((which & 8) != 0) value = (value & 0x80) != 0 ? 0xff : 0;
      result |= value << 8 * byte;
    }
    return result;
  }
};
/// shf: 64 bits of two registers, shifted by 0 to 31.
struct FunnelLeft {
  Word operator()(Word low, Word high, Word by) const {
    return static_cast<Word>((low | std::uint64_t{high} << 32) << (by & 31) >> 32);
  }
};
struct FunnelRight {
  Word operator()(Word low, Word high, Word by) const {
    return static_cast<Word>((low | std::uint64_t{high} << 32) >> (by & 31));
  }
};
/// lop3: any function of three bits, by its table.
struct ByTable {
  Word operator()(Word a, Word b, Word c, Word table) const {
    Word result = 0;
    for (unsigned entry = 0; entry < 8; ++entry) {
      if ((table >> entry & 1) == 0) continue;
      result |= ((entry & 4) != 0 ? a : ~a) & ((entry & 2) != 0 ? b : ~b) & ((entry & 1) != 0 ? c : ~c);
    }
    return result;
  }
};

struct Same {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};

/// mov of one number, which may be an address and a distance from it.
Outcome move(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto distance = static_cast<std::uint64_t>(i.operands[1].displacement);
  for_each_lane(active,
                [&](unsigned l) { warp.set_number(i.operands[0], l, warp.number(i.operands[1], l) + distance); });
  return Outcome::next;
}

/// mov of several registers to the parts of one register, lowest part first. `detail` is the number of bits of a part.
Outcome join(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto bits = static_cast<unsigned>(i.detail);
  for_each_lane(active, [&](unsigned l) {
    std::uint64_t whole = 0;
    for (std::size_t part = 0; part + 1 < i.operands.size(); ++part) {
      whole |= (warp.number(i.operands[part + 1], l) & field_mask(0, bits)) << part * bits;
    }
    warp.set_number(i.operands[0], l, whole);
  });
  return Outcome::next;
}
/// And the other way round.
Outcome take_apart(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto bits = static_cast<unsigned>(i.detail);
  for_each_lane(active, [&](unsigned l) {
    const std::uint64_t whole = warp.number(i.operands.back(), l);
    for (std::size_t part = 0; part + 1 < i.operands.size(); ++part) {
      if (i.operands[part].kind == Operand::Kind::none) continue;
      warp.set_number(i.operands[part], l, whole >> part * bits & field_mask(0, bits));
    }
  });
  return Outcome::next;
}

Execute moves(Instruction& instruction, const Name& name) {
  const int bits = std::stoi(std::string(name.type().substr(1)));
  const std::vector<Operand>& operands = instruction.operands;
  if (operands.size() > 2) {
    instruction.detail = bits / static_cast<int>(operands.size() - 1);
    const bool first_is_whole = operands[0].kind == Operand::Kind::in_registers && operands[0].bytes * 8 == bits;
    return first_is_whole ? &join : &take_apart;
  }
  // An address may have 8 bytes where 4 are asked for.
  const bool is_as_wide = operands[1].kind == Operand::Kind::constant || operands[1].bytes * 8 == bits;
  if (operands[1].displacement != 0 || !is_as_wide) return &move;
  if (bits == 64) return &lanewise<Same, std::uint64_t, std::uint64_t>;
  if (bits == 32) return &lanewise<Same, Word, Word>;
  return &move;
}

template <class F>
Execute shift(string_view type) {
  return for_integer(type, [](auto t) -> Execute { return &lanewise<F, decltype(t), decltype(t), Word>; });
}
/// A word of a number.
template <class F>
Execute measure(string_view type) {
  if (type == "b32" || type == "u32") return &lanewise<F, Word, Word>;
  if (type == "b64" || type == "u64") return &lanewise<F, Word, std::uint64_t>;
  return nullptr;
}

}  // namespace

Execute bits(Instruction& instruction, const Name& name) {
  const string_view base = name.base(), type = name.type();
  const bool is_word = type == "b32" || type == "u32", is_double_word = type == "b64" || type == "u64";
  if (type == "pred") return nullptr;
  if (base == "mov") return moves(instruction, name);
  if (base == "and") return binary_of_integers<And>(type);
  if (base == "or") return binary_of_integers<Or>(type);
  if (base == "xor") return binary_of_integers<Xor>(type);
  if (base == "not") {
    return for_integer(type, [](auto t) -> Execute { return &lanewise<Not, decltype(t), decltype(t)>; });
  }
  if (base == "shl") return shift<ShiftLeft>(type);
  if (base == "shr") return shift<ShiftRight>(type);
  if (base == "shf" && name.has("wrap") && is_word) {
    name.may_have({"r"});
    return name.has("l") ? &lanewise<FunnelLeft, Word, Word, Word, Word>
                         : &lanewise<FunnelRight, Word, Word, Word, Word>;
  }
  if (base == "popc") return measure<PopulationCount>(type);
  if (base == "clz") return measure<LeadingZeros>(type);
  if (base == "bfind") return name.has("shiftamt") ? measure<HighestShift>(type) : measure<HighestPlace>(type);
  if (base == "brev" && is_word) return &lanewise<Reversed, Word, Word>;
  if (base == "brev" && is_double_word) return &lanewise<Reversed, std::uint64_t, std::uint64_t>;
  if (base == "bfe" && is_word) return &lanewise<ExtractBits, Word, Word, Word, Word>;
  if (base == "bfe" && is_double_word) return &lanewise<ExtractBits, std::uint64_t, std::uint64_t, Word, Word>;
  if (base == "bfi" && is_word) return &lanewise<InsertBits, Word, Word, Word, Word, Word>;
  if (base == "bfi" && is_double_word) {
    return &lanewise<InsertBits, std::uint64_t, std::uint64_t, std::uint64_t, Word, Word>;
  }
  if (base == "prmt" && name.size() == 2) return &lanewise<PermuteBytes, Word, Word, Word, Word>;
  if (base == "lop3" && is_word) return &lanewise<ByTable, Word, Word, Word, Word, Word>;
  return nullptr;
}

}  // namespace gdpa::emulator
