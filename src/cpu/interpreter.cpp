// Runs instructions over strips of scores, compiled once for each instruction set and chosen at run time.
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

  template <class Function>
  HWY_INLINE void unary(const Function& function) const {
    const D d;
    const Operand<T> a(registers[instruction.a]);
    T* const destination = registers[instruction.destination].data;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      hn::StoreU(function(d, a.load(d, i)), d, destination + i);
    }
  }

  HWY_INLINE void sigmoid_and_complement() const {
    const D d;
    const Operand<T> a(registers[instruction.a]);
    T* const destination = registers[instruction.destination].data;
    T* const complement = registers[instruction.b].data;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const SigmoidPair<D> pair(d, a.load(d, i));
      hn::StoreU(pair.sigmoid, d, destination + i);
      hn::StoreU(pair.complement, d, complement + i);
    }
  }

  template <class Function>
  HWY_INLINE void binary(const Function& function) const {
    const D d;
    const Operand<T> a(registers[instruction.a]);
    const Operand<T> b(registers[instruction.b]);
    T* const destination = registers[instruction.destination].data;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      hn::StoreU(function(d, a.load(d, i), b.load(d, i)), d, destination + i);
    }
  }

  template <class Function>
  HWY_INLINE void ternary(const Function& function) const {
    const D d;
    const Operand<T> a(registers[instruction.a]);
    const Operand<T> b(registers[instruction.b]);
    const Operand<T> c(registers[instruction.c]);
    T* const destination = registers[instruction.destination].data;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      hn::StoreU(function(d, a.load(d, i), b.load(d, i), c.load(d, i)), d, destination + i);
    }
  }

  const Instruction& instruction;
  const Register<T>* registers;
  std::size_t count;
};

#define GDPA_UNARY(...) strip.unary([](auto d, auto a) HWY_ATTR { return __VA_ARGS__; })
#define GDPA_BINARY(...)                             \
  strip.binary([](auto d, auto a, auto b) HWY_ATTR { \
    (void)d;                                         \
    return __VA_ARGS__;                              \
  })
#define GDPA_TERNARY(...)                                     \
  strip.ternary([](auto d, auto a, auto b, auto c) HWY_ATTR { \
    (void)d;                                                  \
    return __VA_ARGS__;                                       \
  })

template <class T>
HWY_INLINE void run_operation(const Strip<T>& strip) {
  using activation::Operation;
  switch (strip.instruction.operation) {
    case Operation::constant:
    case Operation::score:
    case Operation::input:
      return;
    case Operation::add:
      return GDPA_BINARY(hn::Add(a, b));
    case Operation::subtract:
      return GDPA_BINARY(hn::Sub(a, b));
    case Operation::multiply:
      return GDPA_BINARY(hn::Mul(a, b));
    case Operation::divide:
      return GDPA_BINARY(hn::Div(a, b));
    case Operation::floor_divide:
      return GDPA_BINARY(hn::Floor(hn::Div(a, b)));
    case Operation::power:
      return GDPA_BINARY(power(d, a, b));
    case Operation::negate:
      return GDPA_UNARY((void(d), hn::Neg(a)));
    case Operation::absolute:
      return GDPA_UNARY((void(d), hn::Abs(a)));
    case Operation::sign:
      return GDPA_UNARY(sign(d, a));
    case Operation::floor:
      return GDPA_UNARY((void(d), hn::Floor(a)));
    case Operation::sqrt:
      return GDPA_UNARY((void(d), hn::Sqrt(a)));
    case Operation::rsqrt:
      return GDPA_UNARY(hn::Div(hn::Set(d, 1), hn::Sqrt(a)));
    case Operation::exp:
      return GDPA_UNARY(exp(d, a));
    case Operation::exp2:
      return GDPA_UNARY(exp2(d, a));
    case Operation::expm1:
      return GDPA_UNARY(expm1(d, a));
    case Operation::log:
      return GDPA_UNARY(log(d, a));
    case Operation::log2:
      return GDPA_UNARY(log2(d, a));
    case Operation::log1p:
      return GDPA_UNARY(log1p(d, a));
    case Operation::tanh:
      return GDPA_UNARY(tanh(d, a));
    case Operation::sigmoid:
      return GDPA_UNARY(sigmoid(d, a));
    case Operation::erf:
      return GDPA_UNARY(erf(d, a));
    case Operation::softplus:
      return GDPA_UNARY(softplus(d, a));
    case Operation::sin:
      return GDPA_UNARY(sin(d, a));
    case Operation::cos:
      return GDPA_UNARY(cos(d, a));
    case Operation::minimum:
      return GDPA_BINARY(minimum(d, a, b));
    case Operation::maximum:
      return GDPA_BINARY(maximum(d, a, b));
    case Operation::less:
      return GDPA_BINARY(hn::VecFromMask(d, hn::Lt(a, b)));
    case Operation::less_equal:
      return GDPA_BINARY(hn::VecFromMask(d, hn::Le(a, b)));
    case Operation::equal:
      return GDPA_BINARY(hn::VecFromMask(d, hn::Eq(a, b)));
    case Operation::select:
      return GDPA_TERNARY(hn::IfThenElse(hn::MaskFromVec(a), b, c));
  }
}

template <class T>
HWY_INLINE void run_instruction(const Strip<T>& strip) {
  switch (strip.instruction.code) {
    case Code::operation:
      return run_operation(strip);
    case Code::copy:
      return GDPA_UNARY((void(d), a));
    case Code::multiply_add:
      return GDPA_TERNARY(hn::MulAdd(a, b, c));
    case Code::multiply_subtract:
      return GDPA_TERNARY(hn::MulSub(a, b, c));
    case Code::subtract_product:
      return GDPA_TERNARY(hn::NegMulAdd(a, b, c));
    case Code::floor_log2:
      return GDPA_UNARY(floor_log2(d, a));
    case Code::sigmoid_and_complement:
      return strip.sigmoid_and_complement();
  }
}

#undef GDPA_UNARY
#undef GDPA_BINARY
#undef GDPA_TERNARY

template <class T>
HWY_INLINE void run(const Instruction* instructions, std::size_t instruction_count, const Register<T>* registers,
                    std::size_t count) {
  for (std::size_t i = 0; i < instruction_count; ++i) {
    run_instruction(Strip<T>{instructions[i], registers, count});
  }
}

void run_float(const Instruction* instructions, std::size_t instruction_count, const Register<float>* registers,
               std::size_t count) {
  run(instructions, instruction_count, registers, count);
}

void run_double(const Instruction* instructions, std::size_t instruction_count, const Register<double>* registers,
                std::size_t count) {
  run(instructions, instruction_count, registers, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace gdpa::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdpa::cpu {

HWY_EXPORT(run_float);
HWY_EXPORT(run_double);

void interpret(const Instruction* instructions, std::size_t instruction_count, const Register<float>* registers,
               std::size_t count) {
  HWY_DYNAMIC_DISPATCH(run_float)(instructions, instruction_count, registers, count);
}

void interpret(const Instruction* instructions, std::size_t instruction_count, const Register<double>* registers,
               std::size_t count) {
  HWY_DYNAMIC_DISPATCH(run_double)(instructions, instruction_count, registers, count);
}

}  // namespace gdpa::cpu
#endif  // HWY_ONCE
