// Finds the implementation of an instruction by its name. Each file of instructions has a function, which returns null
// for instructions of other files. This header also has the common helpers of these files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "machine.h"

namespace gdpa::emulator {

/// The parts between the points of an instruction's name. A part that nobody has asked for means that the instruction
/// does something that the emulator does not know.
class Name {
 public:
  explicit Name(std::string_view name) {
    while (!name.empty()) {
      const std::size_t point = std::min(name.find('.'), name.size());
      parts_.push_back(name.substr(0, point));
      name.remove_prefix(std::min(point + 1, name.size()));
    }
    is_known_.resize(parts_.size());
  }

  std::string_view base() const { return (*this)[0]; }
  std::string_view type() const { return (*this)[parts_.size() - 1]; }
  std::string_view operator[](std::size_t part) const {
    is_known_.at(part) = true;
    return parts_.at(part);
  }
  std::size_t size() const { return parts_.size(); }

  bool has(std::string_view part) const {
    const auto found = std::find(parts_.begin(), parts_.end(), part);
    if (found == parts_.end()) return false;
    is_known_[static_cast<std::size_t>(found - parts_.begin())] = true;
    return true;
  }
  /// Parts without a meaning for the emulator.
  void may_have(std::initializer_list<std::string_view> parts) const {
    for (const std::string_view part : parts) has(part);
  }

  /// A part that nobody has asked for, or nothing.
  std::string_view unknown() const {
    const auto found = std::find(is_known_.begin(), is_known_.end(), false);
    return found == is_known_.end() ? std::string_view() : parts_[static_cast<std::size_t>(found - is_known_.begin())];
  }

 private:
  std::vector<std::string_view> parts_;
  mutable std::vector<bool> is_known_;
};

Execute arithmetic(Instruction& instruction, const Name& name);
Execute bits(Instruction& instruction, const Name& name);
Execute predicates(Instruction& instruction, const Name& name);
Execute conversions(Instruction& instruction, const Name& name);
Execute memory(Instruction& instruction, const Name& name);
Execute control(Instruction& instruction, const Name& name);
Execute barriers(Instruction& instruction, const Name& name);
Execute products(Instruction& instruction, const Name& name);
Execute copies(Instruction& instruction, const Name& name);

template <class F>
void for_each_lane(std::uint32_t active, F f) {
  if (active == ~0u) {
    for (unsigned lane = 0; lane < lanes; ++lane) f(lane);
  } else {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if ((active >> lane & 1) != 0) f(lane);
    }
  }
}

/// The first operand becomes F of the others, in each lane by itself: D of S....
template <class F, class D, class... S>
Outcome lanewise(Warp& warp, const Instruction& instruction, std::uint32_t active) {
  return [&]<std::size_t... n>(std::index_sequence<n...>) {
    D* const to = warp.write<D>(instruction.operands[0]);
    const std::tuple<const S*...> from = {warp.read<S>(instruction.operands[n + 1])...};
    for_each_lane(active, [=](unsigned lane) { to[lane] = static_cast<D>(F{}(std::get<n>(from)[lane]...)); });
    return Outcome::next;
  }
  (std::index_sequence_for<S...>{});
}

/// Returns the result of `of` for a number of the C++ type of a PTX type, or null.
template <class F>
Execute for_integer(std::string_view type, F of) {
  if (type == "s16") return of(std::int16_t{});
  if (type == "u16" || type == "b16") return of(std::uint16_t{});
  if (type == "s32") return of(std::int32_t{});
  if (type == "u32" || type == "b32") return of(std::uint32_t{});
  if (type == "s64") return of(std::int64_t{});
  if (type == "u64" || type == "b64") return of(std::uint64_t{});
  return nullptr;
}
template <class F>
Execute for_floating(std::string_view type, F of) {
  if (type == "f32") return of(float{});
  if (type == "f64") return of(double{});
  return nullptr;
}
template <class F>
Execute for_number(std::string_view type, F of) {
  const Execute execute = for_floating(type, of);
  return execute != nullptr ? execute : for_integer(type, of);
}

/// F of one, two or three numbers of the same type.
template <class F>
Execute unary(std::string_view type) {
  return for_number(type, [](auto t) -> Execute { return &lanewise<F, decltype(t), decltype(t)>; });
}
template <class F>
Execute binary(std::string_view type) {
  return for_number(type, [](auto t) -> Execute { return &lanewise<F, decltype(t), decltype(t), decltype(t)>; });
}
template <class F>
Execute binary_of_integers(std::string_view type) {
  return for_integer(type, [](auto t) -> Execute { return &lanewise<F, decltype(t), decltype(t), decltype(t)>; });
}

}  // namespace gdpa::emulator
