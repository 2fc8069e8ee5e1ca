// The numbered barriers of a CTA, and the barriers with phases in shared memory.
#include "operations.h"

namespace gdpa::emulator {

namespace {

/// bar.sync and bar.arrive: number[, threads]. A warp counts as all of its threads.
template <bool waits>
Outcome meet(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto lane = static_cast<unsigned>(__builtin_ctz(active));
  const auto number = static_cast<int>(warp.number(i.operands[0], lane));
  const unsigned all = (warp.cta().launch().threads + lanes - 1) / lanes * lanes;
  const unsigned of = i.operands.size() > 1 ? static_cast<unsigned>(warp.number(i.operands[1], lane)) : all;
  if (!warp.cta().arrive_at(number, lanes, of) && waits) warp.block(number);
  return Outcome::next;
}

/// [barrier], arrivals.
Outcome initialise(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) {
    warp.cta().initialise_barrier(warp.address(i.operands[0], l), static_cast<unsigned>(warp.number(i.operands[1], l)));
  });
  return Outcome::next;
}
Outcome invalidate(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) { warp.cta().invalidate_barrier(warp.address(i.operands[0], l)); });
  return Outcome::next;
}
/// _, [barrier].
Outcome arrive(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) { warp.cta().arrive(warp.address(i.operands[1], l), 0); });
  return Outcome::next;
}
/// _, [barrier], bytes.
Outcome arrive_and_expect(Warp& warp, const Instruction& i, std::uint32_t active) {
  for_each_lane(active, [&](unsigned l) {
    warp.cta().arrive(warp.address(i.operands[1], l), static_cast<std::int64_t>(warp.number(i.operands[2], l)));
  });
  return Outcome::next;
}
/// p, [barrier], parity: whether the phase of that parity is over; try_wait waits for it some time.
template <bool waits>
Outcome test_wait(Warp& warp, const Instruction& i, std::uint32_t active) {
  std::uint32_t over = 0;
  for_each_lane(active, [&](unsigned l) {
    const PhaseBarrier& barrier = warp.cta().barrier(warp.address(i.operands[1], l));
    over |= static_cast<std::uint32_t>(barrier.parity != (warp.number(i.operands[2], l) & 1)) << l;
  });
  warp.set_predicate(i.operands[0], active, over);
  if (over == active || !waits) return Outcome::next;
  warp.stall(active & ~over);
  return Outcome::next_later;
}

}  // namespace

Execute barriers(Instruction& instruction, const Name& name) {
  name.may_have({"aligned", "shared", "shared::cta", "b64", "release", "cta"});
  const bool is_numbered = name.base() == "bar" || name.base() == "barrier";
  if (is_numbered && (name.has("sync") || name.has("arrive"))) {
    instruction.together = Together::all;
    return name.has("sync") ? &meet<true> : &meet<false>;
  }
  if (name.base() != "mbarrier") return nullptr;
  if (name.has("init")) return &initialise;
  if (name.has("inval")) return &invalidate;
  if (name.has("arrive")) return name.has("expect_tx") ? &arrive_and_expect : &arrive;
  if (name.has("try_wait") && name.has("parity")) return &test_wait<true>;
  if (name.has("test_wait") && name.has("parity")) return &test_wait<false>;
  return nullptr;
}

}  // namespace gdpa::emulator
