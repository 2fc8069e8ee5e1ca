// The instructions of a translated Program, and the interpreter that runs them over strips of scores. Each instruction
// reads and writes whole strips, which stay in the first-level cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "expression/operation.h"

namespace gdpa::cpu {

/// The instructions that compute two operations.
enum class Fused : std::uint8_t {
  none,
  multiply_add,            // a * b + c, rounded once
  multiply_subtract,       // a * b - c
  subtract_product,        // c - a * b
  floor_log2,              // floor(log2(a)), from the exponent of a
  sigmoid_and_complement,  // sigmoid(a) to the destination, 1 - sigmoid(a) to register b
};

/// Operands and destination are numbers of registers. The destination may also be an operand.
struct Instruction {
  /// Without operands: the destination becomes a copy of a. A comparison gives a mask with all bits set or no bits set.
  activation::Operation operation = activation::Operation::score;
  Fused fused = Fused::none;
  std::uint8_t operands = 0;
  std::uint16_t destination = 0;
  std::array<std::uint16_t, 3> operand = {};  ///< a, b and c
};

/// One register: a strip of numbers, or one constant that stands for a strip.
template <class T>
struct Register {
  T* data = nullptr;  ///< a constant repeats over the longest vector
  bool is_constant = false;
};

/// The length of a strip is a multiple of this number of elements, which is the longest vector.
template <class T>
inline constexpr std::size_t strip_granularity = 64 / sizeof(T);

/// Runs the instructions over the first `count` numbers of every register; count is a multiple of strip_granularity.
void interpret(std::span<const Instruction> instructions, const Register<float>* registers, std::size_t count);
void interpret(std::span<const Instruction> instructions, const Register<double>* registers, std::size_t count);

}  // namespace gdpa::cpu
