// See machine.h.
#include "machine.h"

#include <algorithm>
#include <memory>

namespace gdpa::emulator {

namespace {

constexpr std::size_t parameter_alignment = 128, shared_alignment = 1024;

std::size_t rounded(std::size_t number, std::size_t unit) { return (number + unit - 1) / unit * unit; }

}  // namespace

Warp::Warp(Cta& cta, unsigned index)
    : cta_(&cta), index_(index), registers_(cta.launch().kernel->register_bytes, std::byte{0xff}) {
  const Launch& launch = cta.launch();
  const unsigned first = index * lanes;
  const unsigned threads = std::min(lanes, launch.threads - first);
  live_ = threads == lanes ? ~0u : (1u << threads) - 1;
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
        case Special::parameters:
          number = reinterpret_cast<std::uint64_t>(cta.machine().parameters()) + special.value;
          break;
        case Special::shared:
          number = Cta::shared_begin + (special.value == SpecialRegister::dynamic_shared
                                            ? rounded(launch.kernel->static_shared_bytes, shared_alignment)
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

/// The lanes that are furthest behind, so that those that went ahead meet them again.
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
  for (; !products_.empty() && products_.front().group < groups; products_.pop_front()) products_.front().compute();
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
      // While all lanes that live are together there is no need to look for others.
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
  std::string text;
  for (const auto& [place, which] : places) {
    char bits[16];
    std::snprintf(bits, sizeof bits, "%08x", which);
    text += (text.empty() ? "" : "; ") + std::string("lanes ") + bits + " at " + std::to_string(place) + ": " +
            (place < instructions.size() ? instructions[place].text : "the end");
    if (place < instructions.size()) {
      for (const Operand& operand : instructions[place].operands) {
        if (operand.kind == Operand::Kind::in_registers && operand.bytes > 0) {
          text += " " + std::to_string(number(operand, static_cast<unsigned>(__builtin_ctz(which))));
        }
      }
    }
  }
  if (is_blocked()) text += "; blocked at barrier " + std::to_string(blocked_at_);
  return text;
}

Cta::Cta(Machine& machine, const Launch& launch, unsigned index)
    : machine_(machine),
      launch_(launch),
      index_(index),
      shared_bytes_(rounded(launch.kernel->static_shared_bytes, shared_alignment) + launch.dynamic_shared_bytes) {
  storage_.assign(shared_bytes_ + shared_alignment, std::byte{0xff});
  memory_ = reinterpret_cast<std::byte*>(rounded(reinterpret_cast<std::uintptr_t>(storage_.data()), shared_alignment));
  local_.assign(launch.kernel->local_bytes * launch.threads, std::byte{0xff});
  if (!local_.empty()) machine_.memory().add(local_begin(0), local_.size());
  for (unsigned warp = 0; warp * lanes < launch.threads; ++warp) warps_.emplace_back(*this, warp);
}

Cta::~Cta() {
  if (!local_.empty()) machine_.memory().remove(local_begin(0));
}

std::uint64_t Cta::local_begin(unsigned thread) const {
  return reinterpret_cast<std::uint64_t>(local_.data()) + thread * launch_.kernel->local_bytes;
}

std::byte* Cta::shared(std::uint64_t address, std::size_t bytes) {
  if (address < shared_begin || address - shared_begin + bytes > shared_bytes_) {
    throw Fault("outside of shared memory, which has " + std::to_string(shared_bytes_) + " bytes: " +
                std::to_string(bytes) + " at " + std::to_string(static_cast<std::int64_t>(address - shared_begin)));
  }
  if (address % bytes != 0 && (bytes & (bytes - 1)) == 0 && bytes <= 16) throw Fault("not aligned in shared memory");
  return memory_ + (address - shared_begin);
}

std::byte* Cta::generic(std::uint64_t address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uint64_t>(memory_);
  if (address >= begin && address < begin + shared_bytes_) return shared(address - shared_base(), bytes);
  return machine_.global(address, bytes);
}

void Cta::initialise_barrier(std::uint64_t address, unsigned arrivals) {
  std::memcpy(shared(address, sizeof PhaseBarrier::seal), &PhaseBarrier::seal, sizeof PhaseBarrier::seal);
  barriers_[address] = {arrivals, arrivals};
}

void Cta::invalidate_barrier(std::uint64_t address) {
  barrier(address);
  barriers_.erase(address);
}

PhaseBarrier& Cta::barrier(std::uint64_t address) {
  std::uint64_t seal = 0;
  std::memcpy(&seal, shared(address, sizeof seal), sizeof seal);
  const auto found = barriers_.find(address);
  if (found == barriers_.end()) throw Fault("no barrier has been initialised there");
  if (seal != PhaseBarrier::seal) throw Fault("the barrier there has been overwritten");
  return found->second;
}

void Cta::settle(PhaseBarrier& barrier) {
  if (barrier.pending_arrivals != 0 || barrier.pending_bytes != 0) return;
  barrier.parity ^= 1;
  barrier.pending_arrivals = barrier.arrivals;
}

void Cta::arrive(std::uint64_t address, std::int64_t expected_bytes) {
  PhaseBarrier& at = barrier(address);
  if (at.pending_arrivals == 0) throw Fault("more arrivals than a phase of the barrier has");
  at.pending_bytes += expected_bytes;
  at.pending_arrivals -= 1;
  settle(at);
  machine_.note_event();
}

void Cta::complete(std::uint64_t address, std::size_t bytes) {
  PhaseBarrier& at = barrier(address);
  at.pending_bytes -= static_cast<std::int64_t>(bytes);
  settle(at);
  machine_.note_event();
}

bool Cta::arrive_at(int number, unsigned threads, unsigned of_threads) {
  unsigned& arrived = arrived_.at(static_cast<std::size_t>(number));
  arrived += threads;
  machine_.note_event();
  if (arrived > of_threads) throw Fault("more threads at a numbered barrier than it is for");
  if (arrived < of_threads) return false;
  arrived = 0;
  for (Warp& warp : warps_) {
    if (warp.blocked_at() == number) warp.release();
  }
  return true;
}

std::uint64_t Cta::start(Copy copy) {
  copies_.emplace(machine_.next_copy_, std::move(copy));
  return machine_.next_copy_++;
}

void Cta::finish_reading(std::uint64_t number) {
  const auto found = copies_.find(number);
  if (found == copies_.end() || found->second.has_read) return;
  Copy& copy = found->second;
  try {
    copy.bytes = copy.read();
  } catch (const Fault& fault) {
    throw Fault(fault, "reading, of the copy " + copy.instruction->text);
  }
  copy.has_read = true;
}

void Cta::finish(std::uint64_t number) {
  finish_reading(number);
  const auto found = copies_.find(number);
  if (found == copies_.end()) return;
  const Copy& copy = found->second;
  try {
    copy.write(copy.bytes);
  } catch (const Fault& fault) {
    throw Fault(fault, "writing, of the copy " + copy.instruction->text);
  }
  copies_.erase(found);
  machine_.note_event();
}

bool Cta::advance_some_copy() {
  if (copies_.empty()) return false;
  const std::uint64_t first = copies_.begin()->first, last = copies_.rbegin()->first;
  const auto& [number, copy] =
      *copies_.lower_bound(first + machine_.random_below(static_cast<unsigned>(last - first) + 1));
  if (copy.has_read || machine_.random_below(2) == 0) {
    finish(number);
  } else {
    finish_reading(number);
  }
  return true;
}

bool Cta::is_over() const {
  return copies_.empty() &&
         std::all_of(warps_.begin(), warps_.end(), [](const Warp& warp) { return warp.live() == 0; });
}

std::string Cta::describe() const {
  std::string text;
  for (const Warp& warp : warps_) {
    text += "\n  CTA " + std::to_string(index_) + ", warp " + std::to_string(warp.index()) + ": " + warp.describe();
  }
  return text;
}

std::byte* Machine::global(std::uint64_t address, std::size_t bytes) {
  if (!memory_.holds(address, bytes)) {
    const auto begin = reinterpret_cast<std::uint64_t>(parameters());
    if (address < begin || address + bytes > begin + parameters_.size() - parameters_at_) {
      throw Fault("outside of all memory: " + std::to_string(bytes) + " bytes at " + std::to_string(address));
    }
  }
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && address % bytes != 0) throw Fault("not aligned in global memory");
  return reinterpret_cast<std::byte*>(address);
}

void Machine::run(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  if (launch.threads > kernel.threads && kernel.threads > 0) throw Fault("more threads than the kernel is made for");
  parameters_.assign(kernel.parameter_bytes + parameter_alignment, std::byte{0});
  parameters_at_ = rounded(reinterpret_cast<std::uintptr_t>(parameters_.data()), parameter_alignment) -
                   reinterpret_cast<std::uintptr_t>(parameters_.data());
  for (std::size_t i = 0; i < kernel.parameter_offsets.size(); ++i) {
    std::memcpy(parameters_.data() + parameters_at_ + kernel.parameter_offsets[i], launch.parameters[i],
                kernel.parameter_sizes[i]);
  }
  // What is awaited may come at once or late: launches differ by far.
  pace_ = {8u << 2 * random_below(4), 4u << 3 * random_below(4), 1u << 4 * random_below(3)};
  constexpr unsigned patience = 400;   // turns of each warp in which nothing happens
  constexpr int most_of_waiting = 12;  // instructions of a turn: whoever runs more is not waiting
  std::vector<std::unique_ptr<Cta>> resident;
  unsigned next = 0;
  std::uint64_t events = events_;
  std::uint64_t idle_turns = 0;
  while (next < launch.ctas || !resident.empty()) {
    while (resident.size() < multiprocessors_ && next < launch.ctas) {
      resident.push_back(std::make_unique<Cta>(*this, launch, next++));
    }
    const std::size_t which = random_below(static_cast<unsigned>(resident.size()));
    Cta& cta = *resident[which];
    Warp& warp = cta.warps()[random_below(static_cast<unsigned>(cta.warps().size()))];
    const int budget = 1 + static_cast<int>(random_below(2 * pace_.instructions_of_turn));
    if (warp.live() != 0 && !warp.is_blocked() && warp.run(budget) > most_of_waiting) note_event();
    if (random_below(pace_.turns_of_copy) == 0) cta.advance_some_copy();
    if (events_ != events) {
      events = events_;
      idle_turns = 0;
    } else if (++idle_turns > patience * cta.warps().size() * resident.size()) {
      const auto waits = [](const std::unique_ptr<Cta>& one) { return one->has_copies(); };
      const auto copying = std::find_if(resident.begin(), resident.end(), waits);
      if (copying == resident.end()) {
        std::string text = "all warps wait for ever:";
        for (const auto& one : resident) text += one->describe();
        throw Fault(text);
      }
      (*copying)->advance_some_copy();
      idle_turns = 0;
    }
    if (cta.is_over()) {
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(which));
      note_event();
    }
  }
}

}  // namespace gdpa::emulator
