// Parsed PTX kernels for the emulator. The names of instructions are resolved to functions, and operands are positions
// in the registers of a warp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace gdpa::emulator {

constexpr unsigned lanes = 32;

/// Up to a multiple.
inline std::size_t rounded(std::size_t number, std::size_t unit) { return (number + unit - 1) / unit * unit; }

/// The same number in every lane, for reading it at each width.
struct Constant {
  explicit Constant(std::uint64_t number);
  std::array<std::uint64_t, lanes> of_8_bytes;
  std::array<std::uint32_t, lanes> of_4_bytes;
  std::array<std::uint16_t, lanes> of_2_bytes;
};

/// An operand of an instruction. A predicate is a word with a bit for each lane.
struct Operand {
  enum class Kind : std::uint8_t { none, in_registers, constant };
  Kind kind = Kind::none;
  std::uint8_t bytes = 0;         ///< of a lane; 0 for a predicate
  bool is_negated = false;        ///< a predicate with ! before it
  std::uint32_t place = 0;        ///< of lane 0, in bytes from the beginning of the warp's registers
  std::int64_t displacement = 0;  ///< of an address, to be added
  const Constant* constant = nullptr;
};

class Warp;
struct Instruction;

/// The continuation of a warp after an instruction: the next instruction, the program counters of the lanes, or a wait
/// at this or at the next instruction.
enum class Outcome : std::uint8_t { next, jumped, retry_later, next_later };
using Execute = Outcome (*)(Warp& warp, const Instruction& instruction, std::uint32_t active);

/// The lanes that must execute an instruction together: none, all live lanes, or the lanes of its last operand.
enum class Together : std::uint8_t { no, all, mask };

struct Instruction {
  Execute execute = nullptr;
  Operand guard;
  Together together = Together::no;
  bool reaches_global = false;  ///< it accesses global memory, or starts a copy from or to global memory
  /// A parameter of `execute` from the name of the instruction, such as the columns of a product or a rounding mode.
  int detail = 0;
  std::uint32_t target = 0;  ///< of a branch
  std::vector<Operand> operands;
  std::string name;  ///< with all of its parts: add.s32
  std::string text;  ///< for messages
};

/// A value of the launch that registers have before the first instruction.
enum class Special : std::uint8_t { thread, threads, cta, ctas, lane, clock, parameters, shared, local, variable };
struct SpecialRegister {
  Special what;
  std::uint32_t place;
  std::uint8_t bytes;
  std::uint64_t value;                                                ///< an offset, or the address of a variable
  static constexpr std::uint64_t dynamic_shared = ~std::uint64_t{0};  ///< the offset after the static shared memory
};

struct Kernel {
  std::vector<Instruction> instructions;
  std::vector<SpecialRegister> specials;
  std::size_t register_bytes = 0;
  std::size_t static_shared_bytes = 0;
  std::size_t local_bytes = 0;  ///< of each thread
  std::vector<std::size_t> parameter_offsets, parameter_sizes;
  std::size_t parameter_bytes = 0;
  unsigned threads = 0;  ///< most that a CTA may have
};

/// A translation unit. Throws std::runtime_error for an unsupported instruction.
class Module {
 public:
  explicit Module(const std::string& ptx);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const Kernel& kernel(const std::string& name) const;
  /// The memory of variables that are neither shared nor local.
  const std::deque<std::vector<std::byte>>& variables() const { return variables_; }

 private:
  friend class Parser;
  std::map<std::string, Kernel> kernels_;
  std::deque<Constant> constants_;
  std::deque<std::vector<std::byte>> variables_;
};

/// Sets the function of an instruction and its synchronisation. Throws std::runtime_error for an unsupported
/// instruction.
void look_up(Instruction& instruction);

}  // namespace gdpa::emulator
