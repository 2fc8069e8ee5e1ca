// Launches: CTAs come and go, and their warps and copies take turns; see machine.h.
#include "machine.h"

#include <algorithm>
#include <memory>

namespace gdpa::emulator {

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
  constexpr std::size_t parameter_alignment = 128;
  const Kernel& kernel = *launch.kernel;
  if (launch.threads > kernel.threads && kernel.threads > 0) throw Fault("more threads than the kernel is made for");
  parameters_.assign(kernel.parameter_bytes + parameter_alignment, std::byte{0});
  parameters_at_ = rounded(reinterpret_cast<std::uintptr_t>(parameters_.data()), parameter_alignment) -
                   reinterpret_cast<std::uintptr_t>(parameters_.data());
  for (std::size_t i = 0; i < kernel.parameter_offsets.size(); ++i) {
    std::memcpy(parameters_.data() + parameters_at_ + kernel.parameter_offsets[i], launch.parameters[i],
                kernel.parameter_sizes[i]);
  }
  // The delays of asynchronous operations differ strongly between launches. Late products reveal buffers that are
  // released too early, which are the least likely errors to appear.
  pace_ = {8u << 2 * random_below(4), 4u << 3 * random_below(4),
           random_below(2) == 0 ? 256 : 1u << 4 * random_below(2)};
  constexpr unsigned patience = 400;   // turns of each warp in which nothing happens
  constexpr int most_of_waiting = 12;  // instructions of a turn: a warp that runs more is not waiting
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
