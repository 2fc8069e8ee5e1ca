// A CTA: its shared and local memory, its barriers, and the copies under way; see machine.h.
#include <algorithm>

#include "machine.h"

namespace gdpa::emulator {

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

}  // namespace gdpa::emulator
