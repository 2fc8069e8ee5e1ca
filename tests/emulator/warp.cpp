// A warp: the positions of its lanes, and its turns in the scheduler; see machine.h.
#include <algorithm>

#include "machine.h"

namespace gdpa::emulator {

Warp::Warp(Cta& cta, unsigned index)
    : cta_(&cta),
      index_(index),
      registers_(cta.launch().kernel->register_bytes, std::byte{0xff}),
      previous_has_ended_(!cta.launch().overlaps_previous) {
  const Launch& launch = cta.launch();
  const unsigned first = index * lanes;
  const unsigned threads = std::min(lanes, launch.threads - first);
  live_ = threads == lanes ? ~0u : (1u << threads) - 1;
  const unsigned clock = cta.machine().random_below(~0u);  // the emulator has no time: the clock does not advance
  for (const SpecialRegister& special : launch.kernel->specials) {
    Operand operand;
    operand.kind = Operand::Kind::in_registers;
    operand.place = special.place;
    operand.bytes = special.bytes;
    for (unsigned lane = 0; lane < lanes; ++lane) {
      std::uint64_t number = 0;
      switch (special.what) {
        case Special::thread:
          number = first + lane;
          break;
        case Special::threads:
          number = launch.threads;
          break;
        case Special::cta:
          number = cta.index();
          break;
        case Special::ctas:
          number = launch.ctas;
          break;
        case Special::lane:
          number = lane;
          break;
        case Special::clock:
          number = clock;
          break;
        case Special::parameters:
          number = reinterpret_cast<std::uint64_t>(cta.machine().parameters()) + special.value;
          break;
        case Special::shared:
          number = Cta::shared_begin + (special.value == SpecialRegister::dynamic_shared
                                            ? rounded(launch.kernel->static_shared_bytes, Cta::shared_alignment)
                                            : special.value);
          break;
        case Special::local:
          number = cta.local_begin(first + lane);
          break;
        case Special::variable:
          number = special.value;
          break;
      }
      set_number(operand, lane, number);
    }
  }
}

/// Returns the lanes with the least progress, so that they rejoin the other lanes.
Warp::Group Warp::next_group() const {
  Group group{~0u, 0};
  const std::uint32_t ready = live_ & ~stalled_ & ~waiting_;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if ((ready >> lane & 1) == 0 || counters_[lane] > group.counter) continue;
    if (counters_[lane] < group.counter) group = {counters_[lane], 0};
    group.lanes |= 1u << lane;
  }
  return group;
}

void Warp::set_counters(std::uint32_t of_lanes, std::uint32_t counter) {
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if (of_lanes >> lane & 1) counters_[lane] = counter;
  }
}

/// Runs one instruction; the counters of the group's lanes are up to the caller, unless they jump.
Outcome Warp::step(const Group& group, const Instruction& instruction) {
  std::uint32_t active = group.lanes;
  if (instruction.guard.kind != Operand::Kind::none) active &= predicate(instruction.guard);
  if (active == 0) return Outcome::next;
  if (instruction.reaches_global && !previous_has_ended_) {
    throw Fault("an access to global memory before the wait for the previous kernel");
  }
  if (instruction.together != Together::no) {
    std::uint32_t expected = live_;
    if (instruction.together == Together::mask) {
      const unsigned lane = static_cast<unsigned>(__builtin_ctz(active));
      expected &= static_cast<std::uint32_t>(number(instruction.operands.back(), lane));
    }
    std::uint32_t others = 0;
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if ((waiting_ >> lane & 1) != 0 && counters_[lane] == group.counter) others |= 1u << lane;
    }
    active |= others;
    if ((active & expected) != expected) {
      waiting_ |= active;
      return Outcome::retry_later;
    }
    waiting_ &= ~active;
    set_counters(others, group.counter + 1);
  }
  const Outcome outcome = instruction.execute(*this, instruction, active);
  if (outcome == Outcome::jumped) set_counters(group.lanes & ~active, group.counter + 1);
  return outcome;
}

void Warp::finish_products(unsigned groups) {
  for (; has_products(groups); products_.pop_front()) products_.front().compute();
}

int Warp::run(int budget) {
  const std::vector<Instruction>& instructions = cta_->launch().kernel->instructions;
  Machine& machine = cta_->machine();
  for (; !products_.empty() && machine.random_below(machine.pace().turns_of_product) == 0; products_.pop_front()) {
    products_.front().compute();
  }
  stalled_ = 0;
  int done = 0;
  while (done < budget && live_ != 0 && !is_blocked()) {
    const Group group = next_group();
    if (group.lanes == 0) break;
    std::uint32_t counter = group.counter;
    for (;;) {
      if (counter >= instructions.size()) throw Fault("the kernel ends without ret");
      const Instruction& instruction = instructions[counter];
      Outcome outcome{};
      try {
        outcome = step({counter, group.lanes}, instruction);
      } catch (const Fault& fault) {
        throw Fault(fault, "at: " + instruction.text + "\n  CTA " + std::to_string(cta_->index()) + ", warp " +
                               std::to_string(index_));
      }
      ++done;
      if (outcome == Outcome::jumped) break;
      if (outcome != Outcome::retry_later) ++counter;
      // If all live lanes are together, no other lanes need to be found.
      const bool is_whole = group.lanes == live_;
      if (outcome == Outcome::next && is_whole && done < budget && !is_blocked()) continue;
      set_counters(group.lanes, counter);
      break;
    }
  }
  return done;
}

std::string Warp::describe() const {
  const std::vector<Instruction>& instructions = cta_->launch().kernel->instructions;
  if (live_ == 0) return "over";
  std::map<std::uint32_t, std::uint32_t> places;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if (live_ >> lane & 1) places[counters_[lane]] |= 1u << lane;
  }
  // An instruction with the contents of its registers.
  const auto told = [&](std::uint32_t place, unsigned lane) {
    if (place >= instructions.size()) return std::string("nothing");
    std::string text = instructions[place].text;
    for (const Operand& operand : instructions[place].operands) {
      if (operand.kind != Operand::Kind::in_registers || operand.bytes == 0) continue;
      text += " " + std::to_string(number(operand, lane));
    }
    return text;
  };
  std::string text;
  for (const auto& [place, which] : places) {
    const auto lane = static_cast<unsigned>(__builtin_ctz(which));
    std::array<char, 16> bits;
    std::snprintf(bits.data(), bits.size(), "%08x", which);
    text += (text.empty() ? "" : "; ") + std::string("lanes ") + bits.data() + " after " + told(place - 1, lane) +
            ", before " + told(place, lane);
  }
  if (is_blocked()) text += "; blocked at barrier " + std::to_string(blocked_at_);
  return text;
}

}  // namespace gdpa::emulator
