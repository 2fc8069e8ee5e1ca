// Runs instructions over strips of scores, compiled once for each instruction set and chosen at run time.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/interpreter.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "cpu/instruction.h"
#include "cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdpa::cpu {
namespace HWY_NAMESPACE {

/// An operand of a loop. A constant has step 0, so that one loop can read strips and constants.
template <class T>
struct Operand {
  explicit Operand(const Register<T>& source) : data(source.data), step(source.is_constant ? 0 : 1) {}

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, std::size_t i) const {
    return hn::LoadU(d, data + i * step);
  }

  const T* data;
  std::size_t step;
};

/// The loops of one instruction over a strip.
template <class T>
struct Strip {
  using D = hn::ScalableTag<T>;

  Strip(const Instruction& instruction, const Register<T>* registers, std::size_t size)
      : a(registers[instruction.operand[0]]),
        b(registers[instruction.operand[1]]),
        c(registers[instruction.operand[2]]),
        destination(registers[instruction.destination].data),
        complement(registers[instruction.operand[1]].data),
        count(size) {}

  template <class Function, class... Operands>
  HWY_INLINE void apply(const Function& function, Operands... operands) const {
    const D d;
    T* const to = destination;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(function(d, operands.load(d, i)...), d, to + i);
  }

  HWY_INLINE void sigmoid_and_complement() const {
    const D d;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const SigmoidPair<D> pair(d, a.load(d, i));
      hn::StoreU(pair.sigmoid, d, destination + i);
      hn::StoreU(pair.complement, d, complement + i);
    }
  }

  Operand<T> a;
  Operand<T> b;
  Operand<T> c;
  T* destination;
  T* complement;
  std::size_t count;
};

#define GDPA_UNARY(code, ...) \
  case code:                  \
    return strip.apply([]([[maybe_unused]] auto d, auto a) HWY_ATTR { return __VA_ARGS__; }, strip.a)
#define GDPA_BINARY(code, ...) \
  case code:                   \
    return strip.apply([]([[maybe_unused]] auto d, auto a, auto b) HWY_ATTR { return __VA_ARGS__; }, strip.a, strip.b)
#define GDPA_TERNARY(code, ...)                                                                                       \
  case code:                                                                                                          \
    return strip.apply([]([[maybe_unused]] auto d, auto a, auto b, auto c) HWY_ATTR { return __VA_ARGS__; }, strip.a, \
                       strip.b, strip.c)

template <class T>
HWY_INLINE void run_instruction(const Instruction& instruction, const Strip<T>& strip) {
  using activation::Operation;
  switch (instruction.fused) {
    case Fused::none:
      break;
    case Fused::sigmoid_and_complement:
      return strip.sigmoid_and_complement();
      GDPA_TERNARY(Fused::multiply_add, hn::MulAdd(a, b, c));
      GDPA_TERNARY(Fused::multiply_subtract, hn::MulSub(a, b, c));
      GDPA_TERNARY(Fused::subtract_product, hn::NegMulAdd(a, b, c));
      GDPA_UNARY(Fused::floor_log2, floor_log2(d, a));
  }
  switch (instruction.operation) {
    case Operation::constant:
    case Operation::input:
      GDPA_UNARY(Operation::score, a);
      GDPA_BINARY(Operation::add, hn::Add(a, b));
      GDPA_BINARY(Operation::subtract, hn::Sub(a, b));
      GDPA_BINARY(Operation::multiply, hn::Mul(a, b));
      GDPA_BINARY(Operation::divide, hn::Div(a, b));
      GDPA_BINARY(Operation::floor_divide, hn::Floor(hn::Div(a, b)));
      GDPA_BINARY(Operation::power, power(d, a, b));
      GDPA_UNARY(Operation::negate, hn::Neg(a));
      GDPA_UNARY(Operation::absolute, hn::Abs(a));
      GDPA_UNARY(Operation::sign, sign(d, a));
      GDPA_UNARY(Operation::floor, hn::Floor(a));
      GDPA_UNARY(Operation::sqrt, hn::Sqrt(a));
      GDPA_UNARY(Operation::rsqrt, hn::Div(hn::Set(d, 1), hn::Sqrt(a)));
      GDPA_UNARY(Operation::exp, exp(d, a));
      GDPA_UNARY(Operation::exp2, exp2(d, a));
      GDPA_UNARY(Operation::expm1, expm1(d, a));
      GDPA_UNARY(Operation::log, log(d, a));
      GDPA_UNARY(Operation::log2, log2(d, a));
      GDPA_UNARY(Operation::log1p, log1p(d, a));
      GDPA_UNARY(Operation::tanh, tanh(d, a));
      GDPA_UNARY(Operation::sigmoid, sigmoid(d, a));
      GDPA_UNARY(Operation::erf, erf(d, a));
      GDPA_UNARY(Operation::softplus, softplus(d, a));
      GDPA_UNARY(Operation::sin, sin(d, a));
      GDPA_UNARY(Operation::cos, cos(d, a));
      GDPA_BINARY(Operation::minimum, minimum(d, a, b));
      GDPA_BINARY(Operation::maximum, maximum(d, a, b));
      GDPA_BINARY(Operation::less, hn::VecFromMask(d, hn::Lt(a, b)));
      GDPA_BINARY(Operation::less_equal, hn::VecFromMask(d, hn::Le(a, b)));
      GDPA_BINARY(Operation::equal, hn::VecFromMask(d, hn::Eq(a, b)));
      GDPA_TERNARY(Operation::select, hn::IfThenElse(hn::MaskFromVec(a), b, c));
  }
}

#undef GDPA_UNARY
#undef GDPA_BINARY
#undef GDPA_TERNARY

template <class T>
HWY_INLINE void run(std::span<const Instruction> instructions, const Register<T>* registers, std::size_t count) {
  for (const Instruction& one : instructions) run_instruction(one, Strip<T>(one, registers, count));
}

void run_float(std::span<const Instruction> instructions, const Register<float>* registers, std::size_t count) {
  run(instructions, registers, count);
}

void run_double(std::span<const Instruction> instructions, const Register<double>* registers, std::size_t count) {
  run(instructions, registers, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace gdpa::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdpa::cpu {

HWY_EXPORT(run_float);
HWY_EXPORT(run_double);

void interpret(std::span<const Instruction> instructions, const Register<float>* registers, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(run_float)(instructions, registers, count);
}

void interpret(std::span<const Instruction> instructions, const Register<double>* registers, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(run_double)(instructions, registers, count);
}

}  // namespace gdpa::cpu
#endif  // HWY_ONCE
