// The emulator executes PTX correctly in any allowed order, and reports errors of a kernel. The tests use small
// handwritten kernels.
#include <gtest/gtest.h>

#include <numeric>

#include "machine.h"
#include "numbers.h"
#include "tensor_map.h"

namespace gdpa::emulator {
namespace {

/// A kernel `test` with parameters that are addresses: %rd0, %rd1 ... %r0 is the thread's number.
std::string kernel(int parameters, const std::string& body) {
  std::string declared, loaded;
  for (int i = 0; i < parameters; ++i) {
    const std::string number = std::to_string(i), name = "parameter_" + number;
    declared += (i == 0 ? "" : ", ") + (".param .u64 " + name);
    loaded += "ld.param.u64 %rd" + number + ", [" + name + "];\n";
  }
  return ".extern .shared .align 1024 .b8 memory[];\n.visible .entry test(" + declared +
         ")\n{\n.reg .pred %p<8>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<20>;\n.reg .f32 %f<8>;\n" + loaded +
         "mov.u32 %r0, %tid.x;\n" + body + "ret;\n}\n";
}

/// Memory that the kernels may use.
template <class T>
class Array {
 public:
  Array(GlobalMemory& memory, std::vector<T> content) : memory_(memory), content_(std::move(content)) {
    memory_.add(address(), content_.size() * sizeof(T));
  }
  Array(GlobalMemory& memory, std::size_t count) : Array(memory, std::vector<T>(count)) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { memory_.remove(address()); }

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(content_.data()); }
  const std::vector<T>& content() const { return content_; }

 private:
  GlobalMemory& memory_;
  std::vector<T> content_;
};

void run(GlobalMemory& memory, const std::string& ptx, unsigned threads, std::vector<std::uint64_t> parameters,
         std::uint64_t seed = 1, bool overlaps_previous = false) {
  const Module module(ptx);
  std::vector<void*> addresses;
  for (std::uint64_t& parameter : parameters) addresses.push_back(&parameter);
  constexpr std::size_t shared_bytes = 16384;
  Machine machine(memory, 1, seed);
  machine.run({&module.kernel("test"), 1, threads, shared_bytes, addresses.data(), overlaps_previous});
}

/// Returns the message of the emulator for an incorrect kernel.
std::string fault_of(const std::string& body, unsigned threads = lanes, bool overlaps_previous = false) {
  GlobalMemory memory;
  const Array<std::uint32_t> result(memory, 1024);
  try {
    run(memory, kernel(1, body), threads, {result.address()}, 1, overlaps_previous);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

/// Stores %r1 of each thread at %rd0.
const std::string store_result = "mul.wide.u32 %rd9, %r0, 4;\nadd.s64 %rd8, %rd0, %rd9;\nst.global.u32 [%rd8], %r1;\n";

std::vector<std::uint32_t> results_of(const std::string& body, unsigned threads = lanes, std::uint64_t seed = 1) {
  GlobalMemory memory;
  const Array<std::uint32_t> result(memory, threads);
  run(memory, kernel(1, body + store_result), threads, {result.address()}, seed);
  return result.content();
}

constexpr std::uint64_t seeds = 20;

TEST(Emulator, LanesThatPartMeetAgain) {
  const std::string body =
      "setp.lt.u32 %p0, %r0, 10;\n"
      "@%p0 bra few;\n"
      "mov.u32 %r1, 1;\n"
      "bra.uni together;\n"
      "few: mov.u32 %r1, 2;\n"
      "together: vote.sync.ballot.b32 %r2, %p0, 0xffffffff;\n"
      "add.s32 %r1, %r1, %r2;\n";
  const std::vector<std::uint32_t> results = results_of(body);
  for (unsigned lane = 0; lane < lanes; ++lane) EXPECT_EQ(results[lane], 0x3ffu + (lane < 10 ? 2 : 1));
}

TEST(Emulator, AShuffleWaitsForLanesThatComeLater) {
  // Each lane turns around as often as its number, then asks the one above.
  const std::string body =
      "mov.u32 %r2, 0;\n"
      "again: add.s32 %r2, %r2, 1;\n"
      "setp.le.u32 %p0, %r2, %r0;\n"
      "@%p0 bra again;\n"
      "shfl.sync.down.b32 %r1|%p1, %r2, 1, 0x1f, 0xffffffff;\n";
  const std::vector<std::uint32_t> results = results_of(body);
  for (unsigned lane = 0; lane + 1 < lanes; ++lane) EXPECT_EQ(results[lane], lane + 2);
  EXPECT_EQ(results[lanes - 1], lanes) << "the last one has nobody to ask, and keeps its own";
}

TEST(Emulator, ReducesTheLanesOfAWarp) {
  const std::string body =
      "mov.u32 %r3, 5;\n"
      "sad.s32 %r2, %r0, %r3, -7;\n"  // the least is -7 at lane 5, and the greatest 19 at lane 31
      "redux.sync.min.s32 %r4, %r2, 0xffffffff;\n"
      "redux.sync.max.s32 %r5, %r2, 0xffffffff;\n"
      "sub.s32 %r1, %r5, %r4;\n";
  for (const std::uint32_t result : results_of(body)) EXPECT_EQ(result, 26);
}

TEST(Emulator, AnInstructionThatNobodyKnowsIsRefused) {
  const auto parse = [](const std::string& body) { const Module module(kernel(0, body)); };
  EXPECT_THROW(parse("frobnicate.b32 %r1, %r0;\n"), std::runtime_error);
  EXPECT_THROW(parse("add.sat.s32 %r1, %r0, 1;\n"), std::runtime_error) << "add is known, what .sat makes of it is not";
}

TEST(Emulator, RoundingTowardZeroAndDown) {
  // 1 + 2^-25 and -1 - 2^-25, toward zero; 1 * 1 - 2^-25 and 1 * 1 + 2^-25, down.
  const std::string body =
      "add.rz.f32 %f0, 0f3f800000, 0f33000000;\n"
      "add.rz.f32 %f1, 0fbf800000, 0fb3000000;\n"
      "fma.rm.f32 %f2, 0f3f800000, 0f3f800000, 0fb3000000;\n"
      "fma.rm.f32 %f3, 0f3f800000, 0f3f800000, 0f33000000;\n"
      "st.global.v4.f32 [%rd0], {%f0, %f1, %f2, %f3};\n";
  GlobalMemory memory;
  const Array<std::uint32_t> result(memory, 4);
  alignas(16) std::array<std::uint32_t, 4> aligned{};
  memory.add(reinterpret_cast<std::uint64_t>(aligned.data()), sizeof aligned);
  run(memory, kernel(1, body), 1, {reinterpret_cast<std::uint64_t>(aligned.data())});
  EXPECT_EQ(aligned, (std::array<std::uint32_t, 4>{0x3f800000, 0xbf800000, 0x3f7fffff, 0x3f800000}));
}

TEST(Emulator, AConversionOfAnIntegerTowardZeroKeepsTheExponent) {
  const auto converted = [](const std::string& number) {
    return results_of("mov.b32 %r2, " + number + ";\ncvt.rz.f32.s32 %f0, %r2;\nmov.b32 %r1, %f0;\n")[0];
  };
  EXPECT_EQ(converted("33554431"), 0x4bffffffU) << "2^25 - 1 has 25 bits; the nearest fp32 number is 2^25";
  EXPECT_EQ(converted("-33554431"), 0xcbffffffU);
  EXPECT_EQ(converted("33554432"), 0x4c000000U);
  EXPECT_EQ(converted("0"), 0U);
}

TEST(Emulator, AnAddressOutsideOfAllMemoryIsAFault) {
  const std::string fault = fault_of("st.global.u32 [%rd0+4096], %r0;\n");
  EXPECT_NE(fault.find("outside of all memory"), std::string::npos) << fault;
  EXPECT_NE(fault.find("st.global.u32 [%rd0+4096], %r0"), std::string::npos) << fault;
  EXPECT_NE(fault.find("CTA 0, warp 0"), std::string::npos) << fault;
}

TEST(Emulator, AnAddressOutsideOfSharedMemoryIsAFault) {
  const std::string fault = fault_of("mov.u32 %r2, memory;\nld.shared.u32 %r1, [%r2+16384];\n");
  EXPECT_NE(fault.find("outside of shared memory"), std::string::npos) << fault;
  EXPECT_NE(fault.find("ld.shared.u32 %r1, [%r2+16384]"), std::string::npos) << fault;
}

TEST(Emulator, AnAccessBeforeTheWaitForThePreviousKernelIsAFault) {
  const std::string access = "st.global.u32 [%rd0], %r0;\n", wait = "griddepcontrol.wait;\n";
  constexpr bool overlaps_previous = true;
  const std::string fault = fault_of(access + wait, lanes, overlaps_previous);
  EXPECT_NE(fault.find("before the wait for the previous kernel"), std::string::npos) << fault;
  EXPECT_EQ(fault_of(wait + access, lanes, overlaps_previous), "no fault");
  EXPECT_EQ(fault_of(access, lanes, !overlaps_previous), "no fault");
}

TEST(Emulator, WarpsThatWaitForEachOtherForEverAreNamed) {
  // Each warp waits for its barrier before it arrives at the other's.
  const std::string body =
      "mov.u32 %r2, memory;\n"
      "setp.eq.u32 %p0, %r0, 0;\n"
      "@%p0 mbarrier.init.shared::cta.b64 [%r2], 32;\n"
      "@%p0 mbarrier.init.shared::cta.b64 [%r2+8], 32;\n"
      "bar.sync 0;\n"
      "shr.u32 %r3, %r0, 5;\n"
      "shl.b32 %r3, %r3, 3;\n"
      "add.s32 %r4, %r2, %r3;\n"
      "xor.b32 %r3, %r3, 8;\n"
      "add.s32 %r5, %r2, %r3;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0;\n"
      "@!%p1 bra again;\n"
      "mbarrier.arrive.shared::cta.b64 _, [%r5];\n";
  const std::string fault = fault_of(body, 2 * lanes);
  EXPECT_NE(fault.find("wait for ever"), std::string::npos) << fault;
  for (const std::string warp : {"CTA 0, warp 0: lanes ffffffff", "CTA 0, warp 1: lanes ffffffff"}) {
    const std::size_t begin = fault.find(warp), wait = fault.find("mbarrier.try_wait", begin);
    EXPECT_LT(wait, fault.find('\n', begin)) << fault;
  }
}

TEST(Emulator, AWarpThatLeavesANumberedBarrierOutIsNamed) {
  const std::string fault = fault_of("setp.lt.u32 %p0, %r0, 32;\n@%p0 bar.sync 1, 64;\n", 2 * lanes);
  EXPECT_NE(fault.find("warp 0: lanes ffffffff"), std::string::npos) << fault;
  EXPECT_NE(fault.find("blocked at barrier 1"), std::string::npos) << fault;
  EXPECT_NE(fault.find("warp 1: over"), std::string::npos) << fault;
}

TEST(Emulator, WritingOverABarrierIsFound) {
  const std::string body =
      "mov.u32 %r2, memory;\n"
      "mbarrier.init.shared::cta.b64 [%r2], 32;\n"
      "st.shared.u32 [%r2+4], %r0;\n"
      "mbarrier.arrive.shared::cta.b64 _, [%r2];\n";
  EXPECT_NE(fault_of(body).find("has been overwritten"), std::string::npos);
}

/// A tensor of 64 numbers of fp32, 4 x 16, and its map.
class Tensor {
 public:
  explicit Tensor(GlobalMemory& memory) : memory_(memory) {
    std::iota(numbers_.begin(), numbers_.end(), 0.0f);
    map_.map = {.seal = TensorMap::sealed,
                .address = reinterpret_cast<std::uint64_t>(numbers_.data()),
                .extents = {16, 4, 1, 1},
                .strides = {64, 256, 256},
                .box = {16, 2, 1, 1},
                .type = map_type_float32,
                .swizzle_bytes = 0,
                .element_bytes = 4};
    memory_.add(map_.map.address, sizeof numbers_);
    memory_.add(map_address(), sizeof map_);
  }
  std::uint64_t map_address() const { return reinterpret_cast<std::uint64_t>(&map_); }

 private:
  struct alignas(128) Padded {
    TensorMap map;
  };
  GlobalMemory& memory_;
  alignas(16) std::array<float, 64> numbers_{};
  Padded map_{};
};

/// Each thread's number of a box of 2 x 16 that begins at row 3, of which the second row is outside of the tensor.
std::vector<std::uint32_t> copied_box(bool waits, std::uint64_t seed) {
  const std::string body =
      "mov.u32 %r2, memory;\n"
      "setp.eq.u32 %p0, %r0, 0;\n"
      "@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
      "bar.sync 0;\n"
      "@!%p0 bra again;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd1, {0, 3, 0, 0}], "
      "[%r2];\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;\n" +
      std::string(waits ? "@!%p1 bra again;\n" : "") +
      "shl.b32 %r3, %r0, 2;\n"
      "add.s32 %r3, %r3, %r2;\n"
      "ld.shared.u32 %r1, [%r3+1024];\n";
  GlobalMemory memory;
  const Tensor tensor(memory);
  const Array<std::uint32_t> result(memory, lanes);
  run(memory, kernel(2, body + store_result), lanes, {result.address(), tensor.map_address()}, seed);
  return result.content();
}

TEST(Emulator, APhaseIsNotOverBeforeItsCopyIs) {
  std::vector<std::uint32_t> expected;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    expected.push_back(lane < 16 ? bits_of(static_cast<float>(48 + lane)) : 0);
  }
  bool was_late = false;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    EXPECT_EQ(copied_box(true, seed), expected) << "seed " << seed;
    was_late = was_late || copied_box(false, seed) != expected;
  }
  EXPECT_TRUE(was_late) << "who does not wait finds it out";
}

/// Numbers that one thread copies to shared memory and, once a test says that they are there or without one, back.
std::vector<std::uint32_t> copied_run(bool waits, std::uint64_t seed) {
  const std::string body =
      "setp.ne.u32 %p0, %r0, 0;\n"
      "@%p0 bra over;\n"
      "mov.u32 %r2, memory;\n"
      "mbarrier.init.shared::cta.b64 [%r2], 1;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd1], 64, [%r2];\n"
      "again: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r2], 0;\n" +
      std::string(waits ? "@!%p1 bra again;\n" : "") +
      "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2+1024], 64;\n"
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group 0;\n"
      "over:\n";
  GlobalMemory memory;
  std::vector<std::uint32_t> numbers(16);
  std::iota(numbers.begin(), numbers.end(), 1);
  const Array<std::uint32_t> from(memory, numbers), to(memory, numbers.size());
  run(memory, kernel(2, body), lanes, {to.address(), from.address()}, seed);
  return to.content();
}

TEST(Emulator, ATestOfAPhaseReturnsAtOnceAndSaysWhetherItIsOver) {
  std::vector<std::uint32_t> expected(16);
  std::iota(expected.begin(), expected.end(), 1);
  bool was_early = false;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    EXPECT_EQ(copied_run(true, seed), expected) << "seed " << seed;
    was_early = was_early || copied_run(false, seed) != expected;
  }
  EXPECT_TRUE(was_early) << "who does not ask again copies what was there before";
}

// ---------------------------------------------------------------------------------------------------------------------
// A product of the tensor cores, 64 x 16 times 16 x 8.

constexpr unsigned rows = 64, columns = 8, depth = 16;

enum class A { in_registers, rows_along_k, columns_along_rows };
enum class B { columns_along_k, rows_along_columns };

float a_at(unsigned row, unsigned k) { return static_cast<float>((row * 7 + k * 5) % 11) - 5; }
float b_at(unsigned k, unsigned column) { return static_cast<float>((k * 3 + column * 13) % 7) - 3; }

/// Rows of 128 bytes with permuted chunks of 16 bytes: in row r, chunk c lies at c ^ r % 8.
void put(std::vector<std::uint16_t>& memory, unsigned begin, unsigned row, unsigned element, float number) {
  const unsigned chunk = element / 8 ^ row % 8;
  memory[begin / 2 + row * 64 + chunk * 8 + element % 8] = BFloat16::from(number);
}

/// The operands as they lie in shared memory, A and then B; they may begin some bytes into their rows.
constexpr unsigned operand_bytes = 10240, b_begin = 8192, k_offset = 32;
std::vector<std::uint16_t> operands(A a, B b) {
  std::vector<std::uint16_t> memory(operand_bytes / 2, 0x7fff);
  for (unsigned k = 0; k < depth; ++k) {
    for (unsigned row = 0; row < rows; ++row) {
      if (a == A::rows_along_k) put(memory, 0, row, k_offset / 2 + k, a_at(row, k));
      if (a == A::columns_along_rows) put(memory, 0, k, row, a_at(row, k));
    }
    for (unsigned column = 0; column < columns; ++column) {
      if (b == B::columns_along_k) put(memory, b_begin, column, k_offset / 2 + k, b_at(k, column));
      if (b == B::rows_along_columns) put(memory, b_begin, k, column, b_at(k, column));
    }
  }
  return memory;
}

/// Registers of A: of each thread four pairs, in rows lane / 4 and 8 below, columns lane % 4 * 2 and 8 further.
std::vector<std::uint32_t> fragments() {
  std::vector<std::uint32_t> result;
  for (unsigned thread = 0; thread < 4 * lanes; ++thread) {
    for (const auto& [below, further] : {std::pair{0u, 0u}, std::pair{8u, 0u}, std::pair{0u, 8u}, std::pair{8u, 8u}}) {
      const unsigned row = thread / lanes * 16 + thread % lanes / 4 + below, k = thread % 4 * 2 + further;
      result.push_back(BFloat16::from(a_at(row, k)) | std::uint32_t{BFloat16::from(a_at(row, k + 1))} << 16);
    }
  }
  return result;
}

/// After the operands are in shared memory: the descriptors %rd5 and %rd6, and the sums %f0 to %f3 of ones.
std::string product_with(A a, B b, const std::string& before_the_wait) {
  const std::string load_operands =
      "mov.u32 %r2, memory;\n"
      "mov.u32 %r3, %r0;\n"
      "copy: mul.wide.u32 %rd9, %r3, 4;\n"
      "add.s64 %rd8, %rd1, %rd9;\n"
      "ld.global.u32 %r4, [%rd8];\n"
      "shl.b32 %r5, %r3, 2;\n"
      "add.s32 %r5, %r5, %r2;\n"
      "st.shared.u32 [%r5], %r4;\n"
      "add.s32 %r3, %r3, 128;\n"
      "setp.lt.u32 %p0, %r3, " +
      std::to_string(operand_bytes / 4) +
      ";\n"
      "@%p0 bra copy;\n"
      "bar.sync 0;\n";
  const std::string load_fragments =
      "mul.wide.u32 %rd9, %r0, 16;\n"
      "add.s64 %rd8, %rd2, %rd9;\n"
      "ld.global.u32 %r10, [%rd8];\n"
      "ld.global.u32 %r11, [%rd8+4];\n"
      "ld.global.u32 %r12, [%rd8+8];\n"
      "ld.global.u32 %r13, [%rd8+12];\n";
  // Beginning in units of 16 bytes; 1024 bytes between groups of 8 rows; swizzle of 128 bytes.
  const auto descriptor = [](const std::string& to, unsigned begin) {
    return "add.s32 %r6, %r2, " + std::to_string(begin) + ";\nshr.u32 %r6, %r6, 4;\nmov.b64 " + to +
           ", {%r6, 1073741888};\n";
  };
  const bool a_is_described = a != A::in_registers;
  return load_operands + load_fragments + descriptor("%rd5", a == A::rows_along_k ? k_offset : 0) +
         descriptor("%rd6", b_begin + (b == B::columns_along_k ? k_offset : 0)) +
         "mov.f32 %f0, 0f3f800000;\nmov.f32 %f1, %f0;\nmov.f32 %f2, %f0;\nmov.f32 %f3, %f0;\n"
         "setp.eq.u32 %p2, 0, 0;\n"
         "wgmma.fence.sync.aligned;\n"
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, " +
         (a_is_described ? "%rd5" : "{%r10, %r11, %r12, %r13}") + ", %rd6, %p2, 1, 1" +
         (a_is_described ? (a == A::columns_along_rows ? ", 1" : ", 0") : "") +
         (b == B::rows_along_columns ? ", 1;\n" : ", 0;\n") + "wgmma.commit_group.sync.aligned;\n" + before_the_wait +
         "wgmma.wait_group.sync.aligned 0;\n"
         "mul.wide.u32 %rd9, %r0, 16;\n"
         "add.s64 %rd8, %rd0, %rd9;\n"
         "st.global.f32 [%rd8], %f0;\n"
         "st.global.f32 [%rd8+4], %f1;\n"
         "st.global.f32 [%rd8+8], %f2;\n"
         "st.global.f32 [%rd8+12], %f3;\n";
}

/// The sums, row by row.
std::vector<float> product_of(A a, B b, std::uint64_t seed, const std::string& before_the_wait = "") {
  GlobalMemory memory;
  const Array<float> result(memory, std::size_t{rows} * columns);
  const Array<std::uint16_t> in_memory(memory, operands(a, b));
  const Array<std::uint32_t> in_registers(memory, fragments());
  run(memory, kernel(3, product_with(a, b, before_the_wait)), 4 * lanes,
      {result.address(), in_memory.address(), in_registers.address()}, seed);
  std::vector<float> sums(std::size_t{rows} * columns);
  for (unsigned thread = 0; thread < 4 * lanes; ++thread) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = thread / lanes * 16 + thread % lanes / 4 + i / 2 * 8, column = thread % 4 * 2 + i % 2;
      sums[row * columns + column] = result.content()[thread * 4 + i];
    }
  }
  return sums;
}

std::vector<float> expected_product() {
  std::vector<float> sums;
  for (unsigned row = 0; row < rows; ++row) {
    for (unsigned column = 0; column < columns; ++column) {
      float sum = 1;
      for (unsigned k = 0; k < depth; ++k) sum += a_at(row, k) * b_at(k, column);
      sums.push_back(sum);
    }
  }
  return sums;
}

TEST(Emulator, AProductOfAWarpgroupIsThatOfAPlainLoop) {
  for (const A a : {A::in_registers, A::rows_along_k, A::columns_along_rows}) {
    for (const B b : {B::columns_along_k, B::rows_along_columns}) {
      EXPECT_EQ(product_of(a, b, 1), expected_product())
          << "A " << static_cast<int>(a) << ", B " << static_cast<int>(b);
    }
  }
}

TEST(Emulator, AProductReadsItsOperandsUntilTheProgramHasWaitedForIt) {
  // B becomes NaN before the wait.
  const std::string overwrite = "st.shared.u32 [%r2+" + std::to_string(b_begin) + "], -1;\n";
  unsigned right = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    EXPECT_EQ(product_of(A::in_registers, B::rows_along_columns, seed), expected_product());
    right += product_of(A::in_registers, B::rows_along_columns, seed, overwrite) == expected_product() ? 1 : 0;
  }
  EXPECT_LT(right, seeds) << "some products must have found the later number";
}

}  // namespace
}  // namespace gdpa::emulator
