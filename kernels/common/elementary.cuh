// The elementary functions that a printed activation calls, in two forms: `exact`, to a few units in the last place of
// fp32, and `fast`, with the hardware's approximations. Self-contained: NVRTC compiles it without any other header.
#pragma once

namespace gdpa {

// min and max that keep NaN; one instruction from sm_80 on.
__device__ __forceinline__ float minimum(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ float maximum(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

namespace exact {

__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float reciprocal(float x) { return __frcp_rn(x); }
__device__ __forceinline__ float power(float a, float b) { return powf(a, b); }
__device__ __forceinline__ float sqrt(float x) { return __fsqrt_rn(x); }
__device__ __forceinline__ float rsqrt(float x) { return rsqrtf(x); }
__device__ __forceinline__ float exp(float x) { return expf(x); }
__device__ __forceinline__ float exp2(float x) { return exp2f(x); }
__device__ __forceinline__ float expm1(float x) { return expm1f(x); }
__device__ __forceinline__ float log(float x) { return logf(x); }
__device__ __forceinline__ float log2(float x) { return log2f(x); }
__device__ __forceinline__ float log1p(float x) { return log1pf(x); }
__device__ __forceinline__ float tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float sigmoid(float x) { return __frcp_rn(1.0f + expf(-x)); }
__device__ __forceinline__ float erf(float x) { return erff(x); }
__device__ __forceinline__ float softplus(float x) { return maximum(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float sin(float x) { return sinf(x); }
__device__ __forceinline__ float cos(float x) { return cosf(x); }

}  // namespace exact

// exp, sigmoid and erf are missing: src/codegen/fast.cpp writes them with exp2, tanh and reciprocal. Where no
// approximation is both cheaper and close for every argument, fast is exact: powers (negative bases), and expm1 and
// log1p (arguments near 0).
namespace fast {

using exact::expm1;
using exact::log1p;
using exact::log2;
using exact::power;

__device__ __forceinline__ float divide(float a, float b) {
  float result;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float sqrt(float x) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float rsqrt(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float log(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result * 0.693147181f;
}

// Relative error up to 2^-11.
__device__ __forceinline__ float tanh(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// max(x, 0) + log1p(exp(-|x|)); log1p on [0, 1] is a polynomial of relative error 1.3e-6.
__device__ __forceinline__ float softplus(float x) {
  const float e = exp2(-1.44269504f * fabsf(x));
  float sum = 1.41375200e-02f;
  sum = sum * e - 6.63905600e-02f;
  sum = sum * e + 1.49209980e-01f;
  sum = sum * e - 2.35030360e-01f;
  sum = sum * e + 3.31092110e-01f;
  sum = sum * e - 4.99869360e-01f;
  sum = sum * e + 9.99998720e-01f;
  return maximum(x, 0.0f) + e * sum;
}

// The factor h = b scale of Q in f(s) = a g(b s) / b, with b limited to sizes from 2^-40 to 2^60, so that a / b is
// finite for an a below 2^88. NaN is returned unchanged. A smaller b changes f by about 2^-40 s, relatively, and a
// larger b only near s = 0.
__device__ __forceinline__ float moderate(float h, float scale) {
  const float size = fabsf(h), unit = fabsf(scale);
  const float least = fmaxf(unit * 0x1p-40f, 0x1p-100f), most = unit * 0x1p60f;
  return size < least ? copysignf(least, h) : size > most ? copysignf(most, h) : h;
}

// x less its nearest multiple of 2 pi, in two steps: the hardware's sine is close on [-pi, pi].
__device__ __forceinline__ float reduced(float x) {
  const float turns = rintf(x * 0.159154943f);
  return fmaf(turns, 1.74845553e-07f, fmaf(turns, -6.28318548f, x));
}

__device__ __forceinline__ float sin(float x) {
  float result;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(reduced(x)));
  return result;
}

__device__ __forceinline__ float cos(float x) {
  float result;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(reduced(x)));
  return result;
}

}  // namespace fast

}  // namespace gdpa
