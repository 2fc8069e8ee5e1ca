// Loads, stores and atomic operations, and addresses of shared memory as generic ones.
#include "integers.h"
#include "operations.h"

namespace gdpa::emulator {

namespace {

using std::string_view;

/// Global memory is also where parameters, constants and local memory are.
enum class Space { shared, global, generic };

template <Space space>
std::byte* place(Warp& warp, std::uint64_t address, std::size_t bytes) {
  if constexpr (space == Space::shared) return warp.cta().shared(address, bytes);
  if constexpr (space == Space::global) return warp.cta().machine().global(address, bytes);
  return warp.cta().generic(address, bytes);
}

/// {registers}, [address]. A register that is wider than the type is filled with its sign.
template <Space space, class T>
Outcome load(Warp& warp, const Instruction& i, std::uint32_t active) {
  const std::size_t elements = i.operands.size() - 1;
  for_each_lane(active, [&](unsigned l) {
    const std::byte* const from = place<space>(warp, warp.address(i.operands.back(), l), sizeof(T) * elements);
    for (std::size_t e = 0; e < elements; ++e) {
      if (i.operands[e].kind == Operand::Kind::none) continue;
      T number;
      std::memcpy(&number, from + e * sizeof(T), sizeof(T));
      warp.set_number(i.operands[e], l, static_cast<std::uint64_t>(number));
    }
  });
  return Outcome::next;
}

/// [address], {registers}.
template <Space space, class T>
Outcome store(Warp& warp, const Instruction& i, std::uint32_t active) {
  const std::size_t elements = i.operands.size() - 1;
  for_each_lane(active, [&](unsigned l) {
    std::byte* const to = place<space>(warp, warp.address(i.operands[0], l), sizeof(T) * elements);
    for (std::size_t e = 0; e < elements; ++e) {
      const auto number = static_cast<T>(warp.number(i.operands[e + 1], l));
      std::memcpy(to + e * sizeof(T), &number, sizeof(T));
    }
  });
  return Outcome::next;
}

template <Space space>
Execute access(string_view type, bool loads) {
  const auto of = [&](auto t) -> Execute { return loads ? &load<space, decltype(t)> : &store<space, decltype(t)>; };
  if (type == "s8") return of(std::int8_t{});
  if (type == "u8" || type == "b8") return of(std::uint8_t{});
  if (type == "f32") return of(std::uint32_t{});
  if (type == "f64") return of(std::uint64_t{});
  return for_integer(type, of);
}

Execute access(const Name& name, bool loads) {
  const auto is_in = [&](string_view space) { return name.has(space); };
  name.may_have({"v2", "v4", "nc", "volatile", "relaxed", "acquire", "release", "cta", "gpu"});
  if (is_in("shared") || is_in("shared::cta")) return access<Space::shared>(name.type(), loads);
  if (is_in("global") || is_in("param") || is_in("const") || is_in("local")) {
    return access<Space::global>(name.type(), loads);
  }
  return access<Space::generic>(name.type(), loads);
}

/// red: [address], {registers}. The elements are changed one by one.
template <class T, class F>
Outcome reduce(Warp& warp, const Instruction& i, std::uint32_t active) {
  const std::size_t elements = i.operands.size() - 1;
  for_each_lane(active, [&](unsigned l) {
    auto* const to = reinterpret_cast<T*>(warp.cta().generic(warp.address(i.operands[0], l), sizeof(T) * elements));
    for (std::size_t e = 0; e < elements; ++e) to[e] = F{}(to[e], warp.read<T>(i.operands[e + 1])[l]);
  });
  warp.cta().machine().note_event();
  return Outcome::next;
}

/// atom: destination of the previous value, [address], a number.
template <class T, class F>
Outcome atomic(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) {
    auto* const to = reinterpret_cast<T*>(warp.cta().generic(warp.address(i.operands[1], l), sizeof(T)));
    const T before = *to;
    *to = F{}(before, warp.read<T>(i.operands[2])[l]);
    warp.write<T>(i.operands[0])[l] = before;
  });
  warp.cta().machine().note_event();
  return Outcome::next;
}
struct Second {
  template <class T>
  T operator()(T, T b) const {
    return b;
  }
};

/// cvta of shared memory, to its own addresses or to generic ones; all others are generic anyway.
Outcome to_shared(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) {
    warp.set_number(i.operands[0], l, warp.address(i.operands[1], l) - warp.cta().shared_base());
  });
  return Outcome::next;
}
Outcome from_shared(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) {
    warp.set_number(i.operands[0], l, warp.address(i.operands[1], l) + warp.cta().shared_base());
  });
  return Outcome::next;
}
Outcome same_address(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) { warp.set_number(i.operands[0], l, warp.address(i.operands[1], l)); });
  return Outcome::next;
}

/// Memory is the same for all at once.
Outcome nothing(Warp&, const Instruction&, std::uint32_t) { return Outcome::next; }

}  // namespace

Execute memory(Instruction&, const Name& name) {
  const string_view base = name.base(), type = name.type();
  if (base == "ld" || base == "ldu") return access(name, true);
  if (base == "st") return access(name, false);
  if (base == "atom" || base == "red")
    name.may_have({"relaxed", "release", "cta", "gpu", "global", "shared", "shared::cta"});
  if (base == "atom") {
    if (name.has("add") && type == "u32") return &atomic<std::uint32_t, Add>;
    if (name.has("add") && type == "f32") return &atomic<float, Add>;
    if (name.has("add") && type == "u64") return &atomic<std::uint64_t, Add>;
    if (name.has("add") && type == "f64") return &atomic<double, Add>;
    if (name.has("exch") && type == "b32") return &atomic<std::uint32_t, Second>;
    if (name.has("or") && type == "b32") return &atomic<std::uint32_t, Or>;
    if (name.has("or") && type == "b64") return &atomic<std::uint64_t, Or>;
  }
  if (base == "red" && name.has("add")) {
    name.may_have({"v2", "v4"});
    if (type == "f32") return &reduce<float, Add>;
    if (type == "f64") return &reduce<double, Add>;
    if (type == "u32" || type == "s32") return &reduce<std::uint32_t, Add>;
    if (type == "u64") return &reduce<std::uint64_t, Add>;
  }
  if (base == "red" && name.has("or") && type == "b64") return &reduce<std::uint64_t, Or>;
  if (base == "cvta") {
    name.may_have({"to", "global", "param", "const", "local"});
    return !name.has("shared") ? &same_address : name.has("to") ? &to_shared : &from_shared;
  }
  if (base == "fence" || base == "membar" || base == "prefetch") {
    for (std::size_t part = 0; part < name.size(); ++part) static_cast<void>(name[part]);
    return &nothing;
  }
  return nullptr;
}

}  // namespace gdpa::emulator
