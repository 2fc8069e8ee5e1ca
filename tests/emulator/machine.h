// The machine that runs a kernel: multiprocessors with CTAs, their warps, shared memory and barriers, and copies under
// way. Whatever the hardware may do in any order, this does in a random one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "ptx.h"

namespace gdpa::emulator {

/// Something that a kernel does and must not: an address outside of all memory, warps that wait for ever.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
  Fault(const Fault& fault, const std::string& where) : runtime_error(fault.what() + ("\n  " + where)) {}
};

/// Which addresses of global memory exist.
class GlobalMemory {
 public:
  void add(std::uint64_t address, std::size_t bytes) { ends_[address] = address + bytes; }
  void remove(std::uint64_t address) {
    ends_.erase(address);
    latest_begin_ = latest_end_ = 0;
  }
  bool holds(std::uint64_t address, std::size_t bytes) {
    if (address >= latest_begin_ && address + bytes <= latest_end_) return true;
    const auto above = ends_.upper_bound(address);
    if (above == ends_.begin()) return false;
    std::tie(latest_begin_, latest_end_) = *std::prev(above);
    return address + bytes <= latest_end_;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;
  std::uint64_t latest_begin_ = 0, latest_end_ = 0;  ///< where holds() looked last
};

struct Launch {
  const Kernel* kernel;
  unsigned ctas;
  unsigned threads;
  std::size_t dynamic_shared_bytes;
  void** parameters;
  bool overlaps_previous = false;  ///< a dependent launch: the previous kernel may still run
};

class Cta;

/// 32 lanes: their registers, and where each of them is.
class Warp {
 public:
  Warp(Cta& cta, unsigned index);

  Cta& cta() const { return *cta_; }
  unsigned index() const { return index_; }

  /// The lanes of an operand, of this type. A constant is read only.
  template <class T>
  const T* read(const Operand& operand) const {
    if (operand.kind == Operand::Kind::constant) {
      if constexpr (sizeof(T) == 8) return reinterpret_cast<const T*>(operand.constant->of_8_bytes.data());
      if constexpr (sizeof(T) == 4) return reinterpret_cast<const T*>(operand.constant->of_4_bytes.data());
      if constexpr (sizeof(T) == 2) return reinterpret_cast<const T*>(operand.constant->of_2_bytes.data());
    }
    if (operand.bytes != sizeof(T)) throw Fault("a register of another width");
    return reinterpret_cast<const T*>(registers_.data() + operand.place);
  }
  template <class T>
  T* write(const Operand& operand) {
    if (operand.bytes != sizeof(T) || operand.kind != Operand::Kind::in_registers) {
      throw Fault("a register of another width");
    }
    return reinterpret_cast<T*>(registers_.data() + operand.place);
  }

  /// A lane's number, of whatever width; not extended.
  std::uint64_t number(const Operand& operand, unsigned lane) const {
    if (operand.kind == Operand::Kind::constant) return operand.constant->of_8_bytes[lane];
    const std::byte* const at = registers_.data() + operand.place + lane * operand.bytes;
    switch (operand.bytes) {
      case 8:
        return *reinterpret_cast<const std::uint64_t*>(at);
      case 4:
        return *reinterpret_cast<const std::uint32_t*>(at);
      case 2:
        return *reinterpret_cast<const std::uint16_t*>(at);
      default:
        throw Fault("a register of a width that is not 2, 4 or 8 bytes");
    }
  }
  /// Its low bytes, as many as the register has.
  void set_number(const Operand& operand, unsigned lane, std::uint64_t number) {
    std::byte* const at = registers_.data() + operand.place + lane * operand.bytes;
    switch (operand.bytes) {
      case 8:
        *reinterpret_cast<std::uint64_t*>(at) = number;
        return;
      case 4:
        *reinterpret_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(number);
        return;
      case 2:
        *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(number);
        return;
      default:
        throw Fault("a register of a width that is not 2, 4 or 8 bytes");
    }
  }
  std::uint64_t address(const Operand& operand, unsigned lane) const {
    const std::uint64_t sum = number(operand, lane) + static_cast<std::uint64_t>(operand.displacement);
    return operand.bytes == 4 ? static_cast<std::uint32_t>(sum) : sum;
  }

  /// A bit for each lane.
  std::uint32_t predicate(const Operand& operand) const {
    std::uint32_t bits = 0;
    if (operand.kind == Operand::Kind::constant) {
      bits = operand.constant->of_8_bytes[0] != 0 ? ~0u : 0;
    } else {
      std::memcpy(&bits, registers_.data() + operand.place, sizeof bits);
    }
    return operand.is_negated ? ~bits : bits;
  }
  void set_predicate(const Operand& operand, std::uint32_t active, std::uint32_t bits) {
    if (operand.kind == Operand::Kind::none) return;
    std::uint32_t all = 0;
    std::memcpy(&all, registers_.data() + operand.place, sizeof all);
    all = (all & ~active) | (bits & active);
    std::memcpy(registers_.data() + operand.place, &all, sizeof all);
  }

  /// The instruction that these lanes are at next.
  void set_counters(std::uint32_t of_lanes, std::uint32_t counter);
  void exit(std::uint32_t active) { live_ &= ~active; }
  /// These lanes do nothing until the warp gets its next turn.
  void stall(std::uint32_t active) { stalled_ |= active; }

  std::uint32_t live() const { return live_; }
  bool is_blocked() const { return blocked_at_ >= 0; }
  /// Until release(); at a numbered barrier.
  void block(int barrier) { blocked_at_ = barrier; }
  int blocked_at() const { return blocked_at_; }
  void release() { blocked_at_ = -1; }

  /// The warp has waited for the end of the previous kernel.
  void end_previous_kernel() { previous_has_ended_ = true; }

  /// Runs up to `budget` instructions; how many it ran.
  int run(int budget);

  /// Where its lanes are, for messages.
  std::string describe() const;

  /// The pending copies of a lane: copies without a group, and groups of copies, the latest group last.
  struct Copies {
    std::vector<std::uint64_t> open;
    std::vector<std::vector<std::uint64_t>> groups;
  };
  std::array<Copies, lanes> copies;

  /// Its part of a product of the tensor cores: computed some time before the program has waited for the product's
  /// group.
  void start_product(std::function<void()> compute) { products_.push_back({product_groups_, std::move(compute)}); }
  void commit_products() { ++product_groups_; }
  unsigned product_groups() const { return product_groups_; }
  /// Of the first so many groups.
  bool has_products(unsigned groups) const { return !products_.empty() && products_.front().group < groups; }
  void finish_products(unsigned groups);

 private:
  struct Group {
    std::uint32_t counter;
    std::uint32_t lanes;
  };
  Group next_group() const;
  Outcome step(const Group& group, const Instruction& instruction);

  Cta* cta_;
  unsigned index_;
  std::vector<std::byte> registers_;
  std::array<std::uint32_t, lanes> counters_{};
  std::uint32_t live_ = 0;
  std::uint32_t stalled_ = 0;
  std::uint32_t waiting_ = 0;  ///< for other lanes, at an instruction of several
  int blocked_at_ = -1;
  bool previous_has_ended_;
  struct Product {
    unsigned group;
    std::function<void()> compute;
  };
  std::deque<Product> products_;
  unsigned product_groups_ = 0;
};

/// A barrier with phases. Its 8 bytes of shared memory contain only a constant, which reveals a write to these bytes.
struct PhaseBarrier {
  static constexpr std::uint64_t seal = 0x5ea1ed0f5ea1ed0f;
  unsigned arrivals = 0;  ///< that complete a phase
  unsigned pending_arrivals = 0;
  std::int64_t pending_bytes = 0;
  unsigned parity = 0;  ///< of the phase under way
};

/// A copy that has been started. It reads, and later writes.
struct Copy {
  const Instruction* instruction;
  std::function<std::vector<std::byte>()> read;
  std::function<void(const std::vector<std::byte>&)> write;
  bool has_read = false;
  std::vector<std::byte> bytes = {};
};

class Machine;

class Cta {
 public:
  Cta(Machine& machine, const Launch& launch, unsigned index);
  Cta(const Cta&) = delete;
  Cta& operator=(const Cta&) = delete;
  ~Cta();

  Machine& machine() const { return machine_; }
  const Launch& launch() const { return launch_; }
  unsigned index() const { return index_; }
  std::deque<Warp>& warps() { return warps_; }

  /// Shared memory begins at an address that is not 0.
  static constexpr std::uint64_t shared_begin = 1024;
  static constexpr std::size_t shared_alignment = 1024;
  std::byte* shared(std::uint64_t address, std::size_t bytes);
  std::uint64_t shared_base() const { return reinterpret_cast<std::uint64_t>(memory_) - shared_begin; }
  /// Where the local memory of a thread begins.
  std::uint64_t local_begin(unsigned thread) const;
  /// Where an address is one of shared memory, or of other memory that exists.
  std::byte* generic(std::uint64_t address, std::size_t bytes);

  void initialise_barrier(std::uint64_t address, unsigned arrivals);
  void invalidate_barrier(std::uint64_t address);
  PhaseBarrier& barrier(std::uint64_t address);
  void arrive(std::uint64_t address, std::int64_t expected_bytes);
  void complete(std::uint64_t address, std::size_t bytes);

  /// Threads come to a numbered barrier; whether it is complete.
  bool arrive_at(int number, unsigned threads, unsigned of_threads);

  /// Starts a copy and returns its number.
  std::uint64_t start(Copy copy);
  /// Runs a copy until it has read its source, or until it has finished.
  void finish_reading(std::uint64_t number);
  void finish(std::uint64_t number);
  bool advance_some_copy();
  bool has_copies() const { return !copies_.empty(); }

  bool is_over() const;
  std::string describe() const;

 private:
  static void settle(PhaseBarrier& barrier);

  Machine& machine_;
  const Launch& launch_;
  unsigned index_;
  std::vector<std::byte> storage_;
  std::byte* memory_;
  std::size_t shared_bytes_;
  std::vector<std::byte> local_;
  std::map<std::uint64_t, PhaseBarrier> barriers_;
  std::array<unsigned, 16> arrived_{};  ///< threads, at each numbered barrier
  std::map<std::uint64_t, Copy> copies_;
  std::deque<Warp> warps_;
};

class Machine {
 public:
  Machine(GlobalMemory& memory, unsigned multiprocessors, std::uint64_t seed)
      : memory_(memory), multiprocessors_(multiprocessors), random_(seed) {}

  /// Runs all CTAs to their end. Throws Fault.
  void run(const Launch& launch);

  GlobalMemory& memory() { return memory_; }
  /// Where an address is one of global memory or of the parameters.
  std::byte* global(std::uint64_t address, std::size_t bytes);
  const std::byte* parameters() const { return parameters_.data() + parameters_at_; }
  unsigned random_below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }
  /// The delays of this launch: the number of turns for each step of a copy, and of a product of the current warp.
  struct Pace {
    unsigned instructions_of_turn = 1;
    unsigned turns_of_copy = 1;
    unsigned turns_of_product = 1;
  };
  const Pace& pace() const { return pace_; }
  /// Something happened that others may have waited for.
  void note_event() { ++events_; }

 private:
  GlobalMemory& memory_;
  unsigned multiprocessors_;
  std::mt19937_64 random_;
  Pace pace_;
  std::vector<std::byte> parameters_;
  std::size_t parameters_at_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t next_copy_ = 0;
  friend class Cta;
};

}  // namespace gdpa::emulator
