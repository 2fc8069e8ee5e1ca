// Control flow of lanes, and communication between the lanes of a warp.
#include <array>

#include "operations.h"

namespace gdpa::emulator {

namespace {

Outcome branch(Warp& warp, const Instruction& i, std::uint32_t active) {
  warp.set_counters(active, i.target);
  return Outcome::jumped;
}
Outcome leave(Warp& warp, const Instruction&, std::uint32_t active) {
  warp.exit(active);
  warp.cta().machine().note_event();
  return Outcome::jumped;
}
/// The emulator has no time. The warp sleeps until its next turn, which comes early or late. All lanes of the warp
/// sleep, so that no lane overtakes a lane that sleeps under a condition.
Outcome sleep(Warp& warp, const Instruction&, std::uint32_t) {
  warp.stall(~0u);
  return Outcome::next_later;
}
Outcome nothing(Warp&, const Instruction&, std::uint32_t) { return Outcome::next; }

/// Kernels run one after the other here. The wait only permits accesses to global memory.
Outcome wait_for_previous_kernel(Warp& warp, const Instruction&, std::uint32_t) {
  warp.end_previous_kernel();
  return Outcome::next;
}

enum class Exchange { idx, up, down, bfly };

/// The lane that shfl reads for this one, or this one where that lies outside of its segment.
template <Exchange how>
int source_of(int lane, int distance, int clamp, int segment) {
  const int least = lane & segment, last = least | (clamp & ~segment);
  switch (how) {
    case Exchange::up:
      return lane - distance >= last ? lane - distance : -1;
    case Exchange::down:
      return lane + distance <= last ? lane + distance : -1;
    case Exchange::bfly:
      return (lane ^ distance) <= last ? lane ^ distance : -1;
    case Exchange::idx:
      break;
  }
  const int source = least | (distance & ~segment);
  return source <= last ? source : -1;
}

/// d[|p], a, lane or distance, clamp and segment, mask.
template <Exchange how>
Outcome shuffle(Warp& warp, const Instruction& i, std::uint32_t active) {
  const bool says_whether = i.operands.size() == 6;
  const std::size_t first = says_whether ? 2 : 1;
  std::array<std::uint64_t, lanes> given{};
  for_each_lane(active, [&](unsigned l) { given[l] = warp.number(i.operands[first], l); });
  std::uint32_t inside = 0;
  for_each_lane(active, [&](unsigned l) {
    const auto distance = static_cast<int>(warp.number(i.operands[first + 1], l) & 31);
    const auto packed = static_cast<int>(warp.number(i.operands[first + 2], l));
    int source = source_of<how>(static_cast<int>(l), distance, packed & 31, packed >> 8 & 31);
    if (source >= 0) inside |= 1u << l;
    if (source < 0) source = static_cast<int>(l);
    if ((active >> source & 1) == 0) throw Fault("a lane is asked for a value that does not take part");
    warp.set_number(i.operands[0], l, given[static_cast<std::size_t>(source)]);
  });
  if (says_whether) warp.set_predicate(i.operands[1], active, inside);
  return Outcome::next;
}

Outcome ballot(Warp& warp, const Instruction& i, std::uint32_t active) {
  const std::uint32_t bits = warp.predicate(i.operands[1]) & active;
  for_each_lane(active, [&](unsigned l) { warp.set_number(i.operands[0], l, bits); });
  return Outcome::next;
}
template <bool all>
Outcome vote(Warp& warp, const Instruction& i, std::uint32_t active) {
  const std::uint32_t bits = warp.predicate(i.operands[1]) & active;
  warp.set_predicate(i.operands[0], active, (all ? bits == active : bits != 0) ? ~0u : 0);
  return Outcome::next;
}

/// redux.sync.min.s32 and max: d, a, mask.
template <bool is_least>
Outcome reduce(Warp& warp, const Instruction& i, std::uint32_t active) {
  auto result = is_least ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int32_t>::min();
  for_each_lane(active, [&](unsigned l) {
    const auto number = static_cast<std::int32_t>(warp.number(i.operands[1], l));
    result = is_least ? std::min(result, number) : std::max(result, number);
  });
  for_each_lane(active, [&](unsigned l) { warp.set_number(i.operands[0], l, static_cast<std::uint32_t>(result)); });
  return Outcome::next;
}

Execute exchange(const Name& name) {
  if (name.has("idx")) return &shuffle<Exchange::idx>;
  if (name.has("up")) return &shuffle<Exchange::up>;
  if (name.has("down")) return &shuffle<Exchange::down>;
  if (name.has("bfly")) return &shuffle<Exchange::bfly>;
  return nullptr;
}

Execute of_lanes(const Name& name) {
  name.may_have({"b32", "pred"});
  if (name.base() == "shfl") return exchange(name);
  if (name.base() == "vote" && name.has("ballot")) return &ballot;
  if (name.base() == "vote" && name.has("all")) return &vote<true>;
  if (name.base() == "vote" && name.has("any")) return &vote<false>;
  if (name.base() == "bar" && name.has("warp")) return &nothing;
  if (name.base() == "redux" && name.has("s32")) {
    if (name.has("min")) return &reduce<true>;
    if (name.has("max")) return &reduce<false>;
  }
  return nullptr;
}

/// Whether an instruction accesses global memory. Generic addresses count as global.
bool reaches_global(const Name& name) {
  constexpr std::array accesses = {"ld", "ldu", "st", "atom", "red", "prefetch"};
  if (name.base() == "cp") return true;
  if (std::find(accesses.begin(), accesses.end(), name.base()) == accesses.end()) return false;
  constexpr std::array others = {"shared", "shared::cta", "param", "const", "local"};
  return std::none_of(others.begin(), others.end(), [&](std::string_view space) { return name.has(space); });
}

}  // namespace

Execute control(Instruction& instruction, const Name& name) {
  name.may_have({"uni", "sync"});
  if (name.base() == "bra") return &branch;
  if (name.base() == "ret" || name.base() == "exit") return &leave;
  if (name.base() == "nanosleep") {
    name.may_have({"u32"});
    return &sleep;
  }
  if (name.base() == "setmaxnreg") {
    name.may_have({"inc", "dec", "aligned", "u32"});
    instruction.together = Together::all;
    return &nothing;
  }
  if (name.base() == "griddepcontrol") {
    if (name.has("wait")) return &wait_for_previous_kernel;
    return name.has("launch_dependents") ? &nothing : nullptr;
  }
  const Execute execute = of_lanes(name);
  if (execute != nullptr) instruction.together = Together::mask;
  return execute;
}

void look_up(Instruction& instruction) {
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error("PTX: the emulator does not know " + what + ": " + instruction.text);
  };
  instruction.reaches_global = reaches_global(Name(instruction.name));
  for (const auto find :
       {&arithmetic, &bits, &predicates, &conversions, &memory, &control, &barriers, &products, &copies}) {
    const Name name(instruction.name);
    instruction.execute = find(instruction, name);
    if (instruction.execute == nullptr) continue;
    if (const std::string_view part = name.unknown(); !part.empty()) fail("what ." + std::string(part) + " means here");
    return;
  }
  fail("this instruction");
}

}  // namespace gdpa::emulator
