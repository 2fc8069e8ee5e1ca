// Comparisons, operations on predicates, and selections.
#include <cmath>
#include <functional>

#include "integers.h"
#include "operations.h"

namespace gdpa::emulator {

namespace {

using std::string_view;

template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(x);
  } else {
    return false;
  }
}

/// Where neither is NaN, and the comparison holds.
template <class F>
struct Ordered {
  template <class T>
  bool operator()(T a, T b) const {
    return !is_nan(a) && !is_nan(b) && F{}(a, b);
  }
};
/// Where one is NaN, or the comparison holds.
template <class F>
struct Unordered {
  template <class T>
  bool operator()(T a, T b) const {
    return is_nan(a) || is_nan(b) || F{}(a, b);
  }
};
struct Always {
  template <class T>
  bool operator()(T, T) const {
    return true;
  }
};
struct Never {
  template <class T>
  bool operator()(T, T) const {
    return false;
  }
};

enum class With : int { nothing, conjunction, disjunction, exclusive };

std::uint32_t combined(With with, std::uint32_t bits, std::uint32_t others) {
  switch (with) {
    case With::conjunction:
      return bits & others;
    case With::disjunction:
      return bits | others;
    case With::exclusive:
      return bits ^ others;
    case With::nothing:
      break;
  }
  return bits;
}

/// setp: p[|q], a, b[, c]. p is the result, q its opposite, each combined with c as `detail`, a With, says.
template <class F, class T>
Outcome compare(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto with = static_cast<With>(i.detail);
  const std::size_t results = i.operands.size() - (with == With::nothing ? 2 : 3);
  const T* const a = warp.read<T>(i.operands[results]);
  const T* const b = warp.read<T>(i.operands[results + 1]);
  std::uint32_t bits = 0;
  for_each_lane(active, [&](unsigned l) { bits |= static_cast<std::uint32_t>(F{}(a[l], b[l])) << l; });
  const std::uint32_t others = with == With::nothing ? 0 : warp.predicate(i.operands.back());
  warp.set_predicate(i.operands[0], active, combined(with, bits, others));
  if (results == 2) warp.set_predicate(i.operands[1], active, combined(with, ~bits, others));
  return Outcome::next;
}

template <class F>
Execute comparison_of_type(string_view type) {
  return for_number(type, [](auto t) -> Execute { return &compare<F, decltype(t)>; });
}

Execute comparison(string_view name, string_view type) {
  if (name == "eq") return comparison_of_type<Ordered<std::equal_to<>>>(type);
  if (name == "ne") return comparison_of_type<Ordered<std::not_equal_to<>>>(type);
  if (name == "lt" || name == "lo") return comparison_of_type<Ordered<std::less<>>>(type);
  if (name == "le" || name == "ls") return comparison_of_type<Ordered<std::less_equal<>>>(type);
  if (name == "gt" || name == "hi") return comparison_of_type<Ordered<std::greater<>>>(type);
  if (name == "ge" || name == "hs") return comparison_of_type<Ordered<std::greater_equal<>>>(type);
  if (name == "equ") return comparison_of_type<Unordered<std::equal_to<>>>(type);
  if (name == "neu") return comparison_of_type<Unordered<std::not_equal_to<>>>(type);
  if (name == "ltu") return comparison_of_type<Unordered<std::less<>>>(type);
  if (name == "leu") return comparison_of_type<Unordered<std::less_equal<>>>(type);
  if (name == "gtu") return comparison_of_type<Unordered<std::greater<>>>(type);
  if (name == "geu") return comparison_of_type<Unordered<std::greater_equal<>>>(type);
  if (name == "num") return comparison_of_type<Ordered<Always>>(type);
  if (name == "nan") return comparison_of_type<Unordered<Never>>(type);
  return nullptr;
}

/// and, or, xor, not and mov of predicates: F of the words with the predicates of all lanes.
template <class F>
Outcome of_one(Warp& warp, const Instruction& i, std::uint32_t active) {
  warp.set_predicate(i.operands[0], active, F{}(warp.predicate(i.operands[1])));
  return Outcome::next;
}
template <class F>
Outcome of_two(Warp& warp, const Instruction& i, std::uint32_t active) {
  warp.set_predicate(i.operands[0], active, F{}(warp.predicate(i.operands[1]), warp.predicate(i.operands[2])));
  return Outcome::next;
}

/// selp: the first number where the predicate is true, else the second.
template <class T>
Outcome select(Warp& warp, const Instruction& i, std::uint32_t active) {
  T* const to = warp.write<T>(i.operands[0]);
  const T* const a = warp.read<T>(i.operands[1]);
  const T* const b = warp.read<T>(i.operands[2]);
  const std::uint32_t chosen = warp.predicate(i.operands[3]);
  for_each_lane(active, [=](unsigned l) { to[l] = (chosen >> l & 1) != 0 ? a[l] : b[l]; });
  return Outcome::next;
}

}  // namespace

Execute predicates(Instruction& instruction, const Name& name) {
  const string_view base = name.base(), type = name.type();
  if (base == "setp") {
    const With with = name.has("and")   ? With::conjunction
                      : name.has("or")  ? With::disjunction
                      : name.has("xor") ? With::exclusive
                                        : With::nothing;
    instruction.detail = static_cast<int>(with);
    return comparison(name[1], type);
  }
  if (base == "selp") return for_number(type, [](auto t) -> Execute { return &select<decltype(t)>; });
  if (type != "pred") return nullptr;
  if (base == "mov") return &of_one<std::identity>;
  if (base == "not") return &of_one<std::bit_not<>>;
  if (base == "and") return &of_two<And>;
  if (base == "or") return &of_two<Or>;
  if (base == "xor") return &of_two<Xor>;
  return nullptr;
}

}  // namespace gdpa::emulator
