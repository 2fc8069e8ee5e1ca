// The sums of the gradients of tensors: many threads add terms to an element of a tensor in global memory, in any
// order. The instructions name global memory. If the compiler does not know that a pointer is not to shared memory, it
// makes atomicAdd() a loop, which works for both kinds of memory.
#pragma once

#include "definition/params.h"
#include "gdpa/integers.h"

namespace gdpa {

/// A sum in fp32, for elements with few terms.
struct FloatSum {
#if __CUDA_ARCH__ >= 900
  static constexpr bool adds_pairs = true;
#else
  static constexpr bool adds_pairs = false;
#endif

  float sum;

  /// A sum of one term.
  __device__ __forceinline__ static FloatSum of(float term) { return {term}; }
  __device__ __forceinline__ void add(float term) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(&sum), "f"(term) : "memory");
  }
#if __CUDA_ARCH__ >= 900
  /// Adds to this sum, at a multiple of 8 bytes, and to the next one.
  __device__ __forceinline__ void add_pair(const float (&terms)[2]) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(&sum), "f"(terms[0]), "f"(terms[1]) : "memory");
  }
#endif
  __device__ __forceinline__ double total() const { return static_cast<double>(sum); }
};

/// A sum in fp64, which keeps the digits of small terms in a large sum.
struct DoubleSum {
  static constexpr bool adds_pairs = false;

  double sum;

  __device__ __forceinline__ static DoubleSum of(float term) { return {static_cast<double>(term)}; }
  __device__ __forceinline__ void add(float term) {
    asm volatile("red.global.add.f64 [%0], %1;" ::"l"(&sum), "d"(static_cast<double>(term)) : "memory");
  }
  __device__ __forceinline__ double total() const { return sum; }
};

/// The exact sum of any terms, which therefore does not depend on their order. Digit k is a multiple of 2^(24 k - 149).
/// A term has at most two digits of 24 bits, and a digit of 64 bits holds 2^39 of them.
struct ExactSum {
  static constexpr bool adds_pairs = false;
  static constexpr int digit_bits = 24, digit_count = 12;

  unsigned long long digits[digit_count];
  unsigned long long flags;  ///< of terms that are not finite: 1 NaN, 2 infinity, 4 -infinity

  __device__ __forceinline__ void add(float term) {
    const unsigned bits = __float_as_uint(term);
    const int exponent = static_cast<int>(bits >> 23 & 255u);
    const unsigned fraction = bits & 0x7fffffu;
    const bool is_negative = (bits >> 31) != 0;
    if (exponent == 255) {
      const unsigned long long flag = fraction != 0 ? 1 : is_negative ? 4 : 2;
      asm volatile("red.global.or.b64 [%0], %1;" ::"l"(&flags), "l"(flag) : "memory");
      return;
    }
    const int place = exponent > 0 ? exponent - 1 : 0;  // of the last bit of the fraction
    const unsigned long long number = exponent > 0 ? fraction | 0x800000u : fraction;
    const unsigned long long shifted = number << place % digit_bits;
    const unsigned long long low = shifted & ((1ull << digit_bits) - 1), high = shifted >> digit_bits;
    const int digit = place / digit_bits;
    if (low != 0) add_to_digit(digit, is_negative ? 0ull - low : low);
    if (high != 0) add_to_digit(digit + 1, is_negative ? 0ull - high : high);
  }

  __device__ __forceinline__ void add_to_digit(int digit, unsigned long long number) {
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(digits + digit), "l"(number) : "memory");
  }

  __device__ __forceinline__ double total() const {
    if ((flags & 1ull) != 0 || (flags & 6ull) == 6ull) return static_cast<double>(__uint_as_float(0x7fc00000u));
    if (flags != 0) return static_cast<double>(__uint_as_float((flags & 2ull) != 0 ? 0x7f800000u : 0xff800000u));
    double sum = 0;
    double unit = 1.4012984643248171e-45;  // 2^-149
    for (int k = 0; k < digit_count; ++k, unit *= 16777216.0) {
      sum += static_cast<double>(static_cast<long long>(digits[k])) * unit;
    }
    return sum;
  }
};

/// Returns the address of copy number `copy` of the sums. `first` is the address of copy 0.
template <class Sum>
__device__ __forceinline__ Sum* copy_of_sums(void* first, const ParameterSums& sums, int copy) {
  return reinterpret_cast<Sum*>(static_cast<unsigned char*>(first) + copy * sums.copy_bytes);
}

/// The sums of the gradient of a tensor to which this CTA adds.
template <class Sum>
__device__ __forceinline__ Sum* sums_of_cta(const Params& params, int tensor) {
  const int copy = static_cast<int>(blockIdx.x) & (params.parameter_sums.copies - 1);
  return copy_of_sums<Sum>(params.grad_parameters[tensor].data, params.parameter_sums, copy);
}

/// The sum over the lanes of a warp, in a fixed order.
__device__ __forceinline__ float sum_of_warp(float term) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) term += __shfl_xor_sync(0xffffffffu, term, lane);
  return term;
}

/// Adds a term of each lane of a warp to sums[element]. The lanes often have the same element, as where an index is
/// clamped. Additions to one address would wait for each other.
template <class Sum, class Element>
__device__ __forceinline__ void add_term_of_lane(Sum* sums, Element element, float term) {
  const bool is_same = __shfl_sync(0xffffffffu, element, 0) == element;
  if (__ballot_sync(0xffffffffu, is_same) == 0xffffffffu) {
    const float total = sum_of_warp(term);
    if (threadIdx.x % 32 == 0) sums[element].add(total);
  } else {
    sums[element].add(term);
  }
}

/// Adds a term of each lane of a warp to sums[element]. The lanes of the same element are added up first, for up to
/// most_groups elements: additions of many lanes to a few elements would wait for each other. With a histogram, which
/// is a sum of the warp for each number of an element in shared memory, the groups are added there.
template <class Sum, class Element>
__device__ __forceinline__ void add_terms_by_element(Sum* sums, Element element, Element number, float term,
                                                     bool is_valid, float* histogram) {
  constexpr int most_groups = 8;
  const unsigned lane = threadIdx.x % 32;
  unsigned left = __ballot_sync(0xffffffffu, is_valid);
#pragma unroll 1
  for (int group = 0; group < most_groups && left != 0; ++group) {
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const bool is_in_group = __shfl_sync(0xffffffffu, number, leader) == number && (left >> lane & 1u) != 0;
    const float total = sum_of_warp(is_in_group ? term : 0.0f);
    if (static_cast<int>(lane) == leader) {
      if (histogram != nullptr) {
        histogram[number] += total;
      } else {
        sums[element].add(total);
      }
    }
    left &= ~__ballot_sync(0xffffffffu, is_in_group);
    __syncwarp();
  }
  if ((left >> lane & 1u) != 0) sums[element].add(term);
}

/// Adds the valid terms of two adjacent scores of a row to sums[elements[0]] and sums[elements[1]]. With `are_pairs`,
/// both are valid, and the elements are a pair for Sum::add_pair.
template <bool are_pairs, class Sum, class Element>
__device__ __forceinline__ void add_two_terms(Sum* sums, const Element (&elements)[2], const float (&terms)[2],
                                              const bool (&is_valid)[2]) {
  if constexpr (are_pairs && Sum::adds_pairs) {
    sums[elements[0]].add_pair(terms);
  } else {
    if (is_valid[0]) sums[elements[0]].add(terms[0]);
    if (is_valid[1]) sums[elements[1]].add(terms[1]);
  }
}

/// The same where both scores read sums[element].
template <class Sum, class Element>
__device__ __forceinline__ void add_two_terms_of_row(Sum* sums, Element element, const float (&terms)[2],
                                                     const bool (&is_valid)[2]) {
  const float sum = (is_valid[0] ? terms[0] : 0.0f) + (is_valid[1] ? terms[1] : 0.0f);
  if (is_valid[0] || is_valid[1]) sums[element].add(sum);
}

/// Adds two terms to the sums of this thread, which are `stride` floats apart. Both sums are loaded before the first is
/// stored, so that the thread waits once.
template <int stride>
__device__ __forceinline__ void add_to_thread_sums(float* sums, const int (&elements)[2], const float (&terms)[2]) {
  float* const first = sums + elements[0] * stride;
  float* const second = sums + elements[1] * stride;
  const float sum = *first + terms[0], before = *second;
  *first = sum;
  *second = (elements[0] == elements[1] ? sum : before) + terms[1];
}

}  // namespace gdpa
