// Translates a Program to instructions over registers, and runs the instructions over strips of scores.
#include "cpu/evaluator.h"

#include <algorithm>
#include <cassert>
#include <optional>

namespace gdpa::cpu {
namespace {

using activation::Operation;
using activation::Program;
using activation::Step;

// The order of the registers: the score, the results, the inputs that are arrays, the constants, the scratch strips.
constexpr std::uint16_t score_register = 0;
constexpr std::uint16_t first_result_register = 1;

/// All scratch strips together occupy half of a first-level cache of 32 KiB, which is the smallest cache in use.
constexpr std::size_t scratch_bytes = 16 * 1024;
constexpr std::size_t longest_strip = 1024;

bool is_product(const Program& program, std::uint16_t step) {
  return program.steps[step].operation == Operation::multiply;
}

/// Returns the instruction of a step, with steps as operands and without a destination. If an operand of a sum is a
/// product, or the operand of floor is log2, the instruction computes both. This depends only on the step and its
/// operands, so that f has the same bits in the program of f and in the program of f and f'.
Instruction instruction_of(const Program& program, const Step& step) {
  const auto product_and = [&](Fused fused, std::uint16_t product, std::uint16_t other) {
    const Step& factors = program.steps[product];
    return Instruction{step.operation, fused, 3, 0, {factors.a, factors.b, other}};
  };
  if (step.operation == Operation::add && is_product(program, step.a)) {
    return product_and(Fused::multiply_add, step.a, step.b);
  }
  if (step.operation == Operation::add && is_product(program, step.b)) {
    return product_and(Fused::multiply_add, step.b, step.a);
  }
  if (step.operation == Operation::subtract && is_product(program, step.a)) {
    return product_and(Fused::multiply_subtract, step.a, step.b);
  }
  if (step.operation == Operation::subtract && is_product(program, step.b)) {
    return product_and(Fused::subtract_product, step.b, step.a);
  }
  if (step.operation == Operation::floor && program.steps[step.a].operation == Operation::log2) {
    return {step.operation, Fused::floor_log2, 1, 0, {program.steps[step.a].a}};
  }
  const auto operands = static_cast<std::uint8_t>(activation::operand_count(step.operation));
  return {step.operation, Fused::none, operands, 0, {step.a, step.b, step.c}};
}

/// 1 - sigmoid(x) for a sigmoid of the program. One instruction computes both, because the difference would cancel.
bool is_complement(const Program& program, const Step& step) {
  return step.operation == Operation::subtract && program.steps[step.b].operation == Operation::sigmoid &&
         program.steps[step.a].operation == Operation::constant && program.steps[step.a].number == 1;
}

/// A part of the scratch memory of a thread, which begins at a cache line.
struct alignas(64) Line {
  std::array<std::byte, 64> bytes;
};

}  // namespace

/// Translates one program: selects the steps that are computed, and assigns a register to each step.
class Evaluator::Translation {
 public:
  Translation(const Program& program, const Inputs& inputs, Evaluator& evaluator)
      : program_(program),
        inputs_(inputs),
        evaluator_(evaluator),
        nodes_(program.steps.size()),
        last_use_(program.steps.size()),
        register_(program.steps.size()),
        complement_(program.steps.size()) {
    find_uses();
    find_complements();
    register_constants();
    emit_all();
  }

 private:
  /// Determines, from the results backwards, the last step that needs each value. A result is needed until the end.
  void find_uses() {
    for (const std::uint16_t result : program_.results) last_use_[result] = program_.steps.size();
    for (std::size_t i = program_.steps.size(); i-- > 0;) {
      if (!last_use_[i]) continue;
      nodes_[i] = instruction_of(program_, program_.steps[i]);
      for (std::size_t k = 0; k < nodes_[i].operands; ++k) {
        auto& use = last_use_[nodes_[i].operand[k]];
        if (!use) use = i;
      }
    }
  }

  void find_complements() {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (last_use_[i] && is_complement(program_, step) && !complement_[step.b]) complement_[step.b] = i;
    }
  }

  void register_constants() {
    std::size_t first = first_result_register + program_.results.size();
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (!last_use_[i] || program_.steps[i].operation != Operation::input) continue;
      const auto input = static_cast<std::size_t>(program_.steps[i].number);
      if (inputs_.at(input)) continue;
      register_[i] = static_cast<std::uint16_t>(first + evaluator_.arrays_.size());
      evaluator_.arrays_.push_back(input);
    }
    first += evaluator_.arrays_.size();
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (!last_use_[i]) continue;
      const Step& step = program_.steps[i];
      if (step.operation == Operation::score) register_[i] = score_register;
      const bool is_input = step.operation == Operation::input;
      if (!is_input && step.operation != Operation::constant) continue;
      const std::optional<double> number =
          is_input ? inputs_[static_cast<std::size_t>(step.number)] : std::optional(step.number);
      if (!number) continue;
      register_[i] = static_cast<std::uint16_t>(first + evaluator_.constants_.size());
      evaluator_.constants_.push_back(*number);
    }
    first_strip_ = first + evaluator_.constants_.size();
  }

  void emit_all() {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (last_use_[i] && nodes_[i].operands > 0) emit(i);
    }
    // The score first: writing another result may overwrite it.
    for (const bool from_score : {true, false}) {
      for (std::size_t k = 0; k < program_.results.size(); ++k) {
        const auto destination = static_cast<std::uint16_t>(first_result_register + k);
        const std::uint16_t source = register_[program_.results[k]];
        if (source == destination || (source == score_register) != from_score) continue;
        evaluator_.instructions_.push_back({Operation::score, Fused::none, 1, destination, {source}});
      }
    }
  }

  void emit(std::size_t i) {
    const Instruction& node = nodes_[i];
    Instruction instruction{node.operation, node.fused, node.operands, 0, {}};
    for (std::size_t k = 0; k < node.operands; ++k) instruction.operand[k] = register_[node.operand[k]];
    for (std::size_t k = 0; k < node.operands; ++k) release(node.operand[k], i);
    if (is_written_already(i)) return;
    instruction.destination = register_[i] = destination_of(i, i);
    if (complement_[i]) {
      instruction.fused = Fused::sigmoid_and_complement;
      instruction.operand[1] = register_[*complement_[i]] = destination_of(*complement_[i], i);
    }
    evaluator_.instructions_.push_back(instruction);
  }

  bool is_written_already(std::size_t i) const {
    return is_complement(program_, program_.steps[i]) && complement_[program_.steps[i].b] == i;
  }

  /// Frees a strip after its last use. The instruction of the last use may already write to the strip.
  void release(std::uint16_t step, std::size_t user) {
    const std::uint16_t strip = register_[step];
    if (last_use_[step] != user || strip < first_strip_) return;
    if (std::find(free_.begin(), free_.end(), strip) == free_.end()) free_.push_back(strip);
  }

  /// Returns the register of step i, which the instruction of step `writer` writes. A result is written directly to its
  /// output if no later step reads the score, because the output may be the memory of the scores.
  std::uint16_t destination_of(std::size_t i, std::size_t writer) {
    for (std::size_t k = 0; k < program_.results.size(); ++k) {
      if (program_.results[k] == i && !score_is_read_after(writer)) {
        return static_cast<std::uint16_t>(first_result_register + k);
      }
    }
    if (free_.empty()) return static_cast<std::uint16_t>(first_strip_ + evaluator_.strips_++);
    const std::uint16_t strip = free_.back();
    free_.pop_back();
    return strip;
  }

  bool score_is_read_after(std::size_t i) const {
    for (std::size_t step = 0; step < program_.steps.size(); ++step) {
      if (program_.steps[step].operation == Operation::score && last_use_[step] && *last_use_[step] > i) return true;
    }
    return false;
  }

  const Program& program_;
  const Inputs& inputs_;
  Evaluator& evaluator_;
  std::vector<Instruction> nodes_;  ///< of each step, with steps as operands
  std::vector<std::optional<std::size_t>> last_use_;
  std::vector<std::uint16_t> register_;
  std::vector<std::optional<std::size_t>> complement_;  ///< of a sigmoid: the step that subtracts it from 1
  std::vector<std::uint16_t> free_;
  std::size_t first_strip_ = 0;
};

Evaluator::Evaluator(const Program& program, const Inputs& inputs) : results_(program.results.size()) {
  Translation(program, inputs, *this);
}

template <class T>
void Evaluator::evaluate(const T* scores, std::int64_t count, std::span<T* const> results,
                         const T* const* inputs) const {
  assert(results.size() >= results_ && (inputs != nullptr || arrays_.empty()));
  constexpr std::size_t step = strip_granularity<T>;
  // In addition to the scratch registers: strips for the score, the results and the inputs of the last, partial strip.
  const std::size_t first_array = 1 + results_;
  const std::size_t buffers = first_array + arrays_.size();
  const std::size_t fitting = scratch_bytes / sizeof(T) / (strips_ + buffers);
  const std::size_t strip = std::clamp(fitting / step * step, step, longest_strip);

  // Of one thread. Both grow to the largest requested size.
  thread_local std::vector<Line> lines;
  thread_local std::vector<Register<T>> registers;
  const std::size_t elements = (buffers + strips_) * strip + constants_.size() * step;
  lines.resize(std::max(lines.size(), elements / step));
  registers.resize(std::max(registers.size(), buffers + constants_.size() + strips_));
  auto* const memory = reinterpret_cast<T*>(lines.data());
  for (std::size_t i = 0; i < constants_.size(); ++i) {
    T* const constant = memory + (buffers + strips_) * strip + i * step;
    std::fill_n(constant, step, static_cast<T>(constants_[i]));
    registers[buffers + i] = {constant, true};
  }
  for (std::size_t i = 0; i < strips_; ++i) {
    registers[buffers + constants_.size() + i] = {memory + (buffers + i) * strip, false};
  }

  const auto total = static_cast<std::size_t>(count);
  for (std::size_t begin = 0; begin < total; begin += strip) {
    const std::size_t length = std::min(strip, total - begin);
    const std::size_t padded = (length + step - 1) / step * step;
    if (padded == length) {
      registers[score_register] = {const_cast<T*>(scores + begin), false};  // never a destination
      for (std::size_t k = 0; k < results_; ++k) registers[first_result_register + k] = {results[k] + begin, false};
      for (std::size_t k = 0; k < arrays_.size(); ++k) {
        registers[first_array + k] = {const_cast<T*>(inputs[arrays_[k]] + begin), false};  // never a destination
      }
      interpret(instructions_, registers.data(), length);
      continue;
    }
    for (std::size_t k = 0; k < buffers; ++k) registers[k] = {memory + k * strip, false};
    const auto copy = [&](const T* from, T* to) { std::fill(std::copy_n(from, length, to), to + padded, T{0}); };
    copy(scores + begin, memory);
    for (std::size_t k = 0; k < arrays_.size(); ++k) copy(inputs[arrays_[k]] + begin, registers[first_array + k].data);
    interpret(instructions_, registers.data(), padded);
    for (std::size_t k = 0; k < results_; ++k) {
      std::copy_n(registers[first_result_register + k].data, length, results[k] + begin);
    }
  }
}

template void Evaluator::evaluate(const float*, std::int64_t, std::span<float* const>, const float* const*) const;
template void Evaluator::evaluate(const double*, std::int64_t, std::span<double* const>, const double* const*) const;

}  // namespace gdpa::cpu
