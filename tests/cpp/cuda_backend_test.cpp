// The path of a call on a GPU, with a driver that computes nothing: launches, refused calls, and messages. The test
// needs NVRTC and no GPU.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fake_driver.h"
#include "gdpa/gdpa.h"
#include "gdpa/system.h"
#include "gpu/target.h"
#include "gradient_layout.h"
#include "jit/nvrtc.h"

namespace gdpa {
namespace {

constexpr Device gpu{DeviceKind::cuda, 0};

/// A jagged problem of three sequences. Its device memory is the memory of this process, as in the fake driver.
struct Call {
  explicit Call(const std::string& function, bool deterministic = false) {
    attention.activation = Activation(function);
    attention.deterministic = deterministic;
    attention.stream = &attention;
  }

  static constexpr int64_t rows = 12, heads = 2, head_dim = 16;
  alignas(16) float numbers[8][rows * heads * head_dim] = {};
  std::vector<int32_t> offsets = {0, 5, 5, 12};

  TensorView input(int i) const {
    return TensorView::contiguous(numbers[i], DType::float32, {rows, heads, head_dim}, gpu);
  }
  MutableTensorView output(int i) {
    return MutableTensorView::contiguous(numbers[i], DType::float32, {rows, heads, head_dim}, gpu);
  }
  TensorView cumulative() const { return TensorView::contiguous(offsets.data(), DType::int32, {4}, gpu); }

  Attention attention{.query = input(0),
                      .key = input(1),
                      .value = input(2),
                      .cu_seqlens_q = cumulative(),
                      .cu_seqlens_k = cumulative()};

  void forward() { gdpa::forward(attention, output(3)); }
  void backward() { gdpa::backward(attention, input(4), output(5), output(6), output(7)); }
};

/// The words of the Error that `work` throws, or nothing.
template <class Work>
std::string refusal_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class CudaBackend : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = std::filesystem::temp_directory_path() / ("gdpa-backend-test-" + std::to_string(::getpid()));
    ::setenv("GDPA_CACHE_DIR", folder().c_str(), 1);
    std::atexit([] { std::filesystem::remove_all(folder()); });  // also in the processes of death tests
  }

  void SetUp() override {
    fake_driver() = FakeDriver();
    try {
      jit::Nvrtc::open();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static std::filesystem::path& folder() {
    static std::filesystem::path path;
    return path;
  }
};

TEST_F(CudaBackend, ForwardIsOneKernelOnTheCallersStream) {
  Call call("s");
  call.forward();
  ASSERT_EQ(fake_driver().launches.size(), 1U);
  const FakeLaunch& launch = fake_driver().launches[0];
  EXPECT_EQ(launch.stream, call.attention.stream);
  EXPECT_GT(launch.block, 0U);
  EXPECT_GT(launch.shared_bytes, 0U);
}

TEST_F(CudaBackend, ASecondCallLoadsNothing) {
  Call call("s + 1");
  call.forward();
  EXPECT_EQ(fake_driver().loads, 1);
  call.forward();
  EXPECT_EQ(fake_driver().loads, 1);
}

/// Calls `step` with the numbers 0, 1, ... and expects each later step to launch what the first one launched, without
/// another compilation or load.
template <class Step>
void expect_kernels_of_the_first(int steps, const std::filesystem::path& cache, const Step& step) {
  const auto compilations = [&] {
    const std::filesystem::recursive_directory_iterator files(cache);
    return std::count_if(begin(files), end(files), [](const auto& file) { return file.is_regular_file(); });
  };
  step(0);
  const int loads = fake_driver().loads;
  const auto compiled = compilations();
  const std::size_t launches = fake_driver().launches.size();
  for (int number = 1; number < steps; ++number) step(number);
  EXPECT_EQ(fake_driver().loads, loads);
  EXPECT_EQ(compilations(), compiled);
  EXPECT_EQ(fake_driver().launches.size(), launches * static_cast<std::size_t>(steps));
}

TEST_F(CudaBackend, TenThousandTrainingStepsLoadOneKernelForEachDirection) {
  // The tensors are numbers, elements, and elements in a list of functions.
  const char* const table = "silu(s + table[head, clamp(q_idx - kv_idx, 0, 7)])";
  for (const std::string& text : {std::string("a * silu(s)"), std::string(table), std::string(table) + "; gelu(s)"}) {
    SCOPED_TRACE(text);
    const bool is_number = text[0] == 'a';
    const std::string name = is_number ? "a" : "table";
    Call call("s");
    call.attention.activation = Activation(text, {}, {name});
    std::array<std::array<float, 16>, 2> values = {};  // the numbers of a step may have another address
    std::array<float, 16> gradient = {};
    const auto view = [&](auto* data, auto kind) {
      using View = decltype(kind);
      return is_number ? View::contiguous(data, DType::float32, {}, gpu)
                       : View::contiguous(data, DType::float32, {Call::heads, 8}, gpu);
    };
    const auto step = [&](int number) {
      auto& of_step = values[static_cast<std::size_t>(number % 2)];
      of_step.fill(static_cast<float>(number) / 1000);
      call.offsets = {0, 1 + number % 5, 6, 12 - number % 3};
      call.attention.parameters = {{name, view(of_step.data(), TensorView{})}};
      call.forward();
      gdpa::backward(call.attention, call.input(4), call.output(5), call.output(6), call.output(7),
                     {{name, view(gradient.data(), MutableTensorView{})}});
    };
    expect_kernels_of_the_first(10'000, folder(), step);
    // Forward; backward, the sums of the gradient of the tensor, and the rounding of both.
    EXPECT_LE(fake_driver().loads, 5);
    fake_driver() = FakeDriver();
  }
}

TEST_F(CudaBackend, BackwardClearsItsSumsAndGivesTheMemoryBack) {
  Call call("s + 2");
  call.backward();
  EXPECT_EQ(fake_driver().launches.size(), 2U);  // backward, and the rounding of dQ
  EXPECT_EQ(fake_driver().fills, 1);
  EXPECT_EQ(fake_driver().allocations, 0);
}

TEST_F(CudaBackend, TheWorkspaceIsThatOfTheKernelsWhichTheGradientsGet) {
  constexpr Device hopper{DeviceKind::cuda, 1};  // a device is asked for its properties once
  fake_driver().devices = 2;
  fake_driver().capability = 90;
  alignas(16) static std::byte numbers[1 << 16];
  const TensorView input = TensorView::contiguous(numbers, DType::bfloat16, {3, 64, 2, 16}, hopper);
  const Attention attention{.query = input, .key = input, .value = input};
  constexpr std::size_t elements = 3 * 64 * 2 * 16;
  const auto needed = [&](std::size_t offset) {
    const auto gradient = [&](std::size_t number) {
      return MutableTensorView::contiguous(numbers + number * elements * 2 + offset, DType::bfloat16, {3, 64, 2, 16},
                                           hopper);
    };
    return workspace_bytes(attention, input, gradient(1), gradient(2), gradient(3));
  };
  constexpr int64_t sums = elements * sizeof(float);
  EXPECT_LT(needed(0), sums) << "dQ is stored at once";
  EXPECT_EQ(needed(0), workspace_bytes(attention, Direction::backward));
  EXPECT_GE(needed(2), sums) << "rows that begin elsewhere go to the portable kernels, which sum";
}

/// Backward on a Hopper GPU with dense operands, for gradients of the output in any layout.
struct GradientLayouts {
  static constexpr Device hopper{DeviceKind::cuda, 1};  // a device is asked for its properties once
  static constexpr int64_t elements = 3 * 64 * 2 * 16;
  alignas(16) inline static std::byte numbers[1 << 17] = {};

  GradientLayouts() {
    fake_driver().devices = 2;
    fake_driver().capability = 90;
  }

  static TensorView grad_output(std::array<int64_t, 4> strides, int64_t byte = 0) {
    TensorView view = TensorView::contiguous(numbers + byte, DType::bfloat16, {3, 64, 2, 16}, hopper);
    view.strides = strides;
    return view;
  }

  /// The portable kernels add to fp32 sums of dQ here, which need memory; the Hopper kernels store dQ at once.
  static bool takes_hopper_kernels(const TensorView& grad_output) {
    const TensorView input = TensorView::contiguous(numbers, DType::bfloat16, {3, 64, 2, 16}, hopper);
    const Attention attention{.query = input, .key = input, .value = input};
    const auto gradient = [](int64_t number) {
      constexpr int64_t behind_every_layout = 1 << 16;
      return MutableTensorView::contiguous(numbers + behind_every_layout + number * elements * 2, DType::bfloat16,
                                           {3, 64, 2, 16}, hopper);
    };
    const int64_t bytes = workspace_bytes(attention, grad_output, gradient(1), gradient(2), gradient(3));
    return bytes < elements * static_cast<int64_t>(sizeof(float));
  }
};

TEST_F(CudaBackend, AGradientIsCopiedWhereTheHopperKernelsCannotReadIt) {
  using Layouts = GradientLayouts;
  const Layouts layouts;
  const std::vector<TensorView> unreadable = {
      Layouts::grad_output({2048, 32, 0, 1}),  Layouts::grad_output({2048, 0, 16, 1}),
      Layouts::grad_output({2052, 32, 16, 1}), Layouts::grad_output({2048, 36, 16, 1}),
      Layouts::grad_output({2448, 38, 17, 1}), Layouts::grad_output({2048, 32, 16, 1}, 2)};
  for (const TensorView& view : unreadable) {
    SCOPED_TRACE(testing::Message() << "strides " << view.strides[0] << ' ' << view.strides[1] << ' ' << view.strides[2]
                                    << " at " << view.data);
    EXPECT_FALSE(Layouts::takes_hopper_kernels(view)) << "otherwise no copy is due";
    EXPECT_TRUE(needs_copy(view));
  }
  for (const int64_t last : {0, 2}) EXPECT_TRUE(needs_copy(Layouts::grad_output({2048, 32, 16, last})));
  EXPECT_TRUE(needs_copy(Layouts::grad_output({0, 0, 0, 1})));
  const std::vector<TensorView> readable = {Layouts::grad_output({2048, 32, 16, 1}),
                                            Layouts::grad_output({2048, 16, 1024, 1}),
                                            Layouts::grad_output({4096, 64, 24, 1}, 16)};
  for (const TensorView& view : readable) {
    EXPECT_TRUE(Layouts::takes_hopper_kernels(view));
    EXPECT_FALSE(needs_copy(view)) << view.strides[0] << ' ' << view.strides[1] << ' ' << view.strides[2];
  }
}

TEST_F(CudaBackend, HopperKernelsTakePagesThatAreAWholeNumberOfRowsApart) {
  const GradientLayouts layouts;
  const Device hopper = GradientLayouts::hopper;
  void* const numbers = GradientLayouts::numbers;
  const TensorView query = TensorView::contiguous(numbers, DType::bfloat16, {2, 64, 2, 16}, hopper);
  const auto kernel_of = [&](std::array<int64_t, 4> strides) {
    TensorView pages = TensorView::contiguous(numbers, DType::bfloat16, {5, 32, 2, 16}, hopper);
    pages.strides = strides;
    const Attention attention{.query = query,
                              .key = pages,
                              .value = pages,
                              .block_table = TensorView::contiguous(numbers, DType::int32, {2, 3}, hopper),
                              .seqused_k = TensorView::contiguous(numbers, DType::int32, {2}, hopper)};
    return explain(attention, Direction::forward).kernels.at(0).name;
  };
  constexpr std::string_view hopper_kernel = "hopper: forward BFloat16 d=16 paged in boxes of 32";
  // flash-attn and vLLM; pages of keys and values in alternation; heads outside of the rows of a page.
  for (const std::array<int64_t, 4>& strides :
       {std::array<int64_t, 4>{1024, 32, 16, 1}, {2048, 32, 16, 1}, {1024, 16, 512, 1}}) {
    EXPECT_EQ(kernel_of(strides).substr(0, hopper_kernel.size()), hopper_kernel);
  }
  for (const std::array<int64_t, 4>& strides :
       {std::array<int64_t, 4>{1032, 32, 16, 1}, {32, 160, 16, 1}, {0, 32, 16, 1}}) {
    EXPECT_EQ(kernel_of(strides).find("portable: forward"), 0U) << kernel_of(strides);
  }
}

TEST(GradientLayout, TheCpuReadsEveryStrideButTheLast) {
  TensorView view = TensorView::contiguous(nullptr, DType::float32, {12, 2, 5});
  EXPECT_FALSE(needs_copy(view));
  view.strides = {0, 0, 1};
  EXPECT_FALSE(needs_copy(view));
  view.strides = {0, 0, 0};
  EXPECT_TRUE(needs_copy(view));
}

TEST_F(CudaBackend, AKernelThatIsNotLoadedIsRefusedDuringACapture) {
  Call call("s + 3");
  fake_driver().is_capturing = true;
  EXPECT_NE(refusal_of([&] { call.backward(); }).find("run the same call once before capturing, or gdpa::compile"),
            std::string::npos);
  EXPECT_TRUE(fake_driver().launches.empty());
  EXPECT_EQ(fake_driver().fills, 0);
}

TEST_F(CudaBackend, WhatWasCompiledAheadIsReadyForACapture) {
  for (const bool deterministic : {false, true}) {
    Call call("s + 4", deterministic);
    compile(call.attention, Direction::forward);
    compile(call.attention, Direction::backward);
    EXPECT_TRUE(fake_driver().launches.empty());
    const int loads = fake_driver().loads;
    fake_driver().is_capturing = true;
    call.forward();
    call.backward();
    EXPECT_EQ(fake_driver().launches.size(), 3U);
    EXPECT_EQ(fake_driver().loads, loads);
    fake_driver() = FakeDriver();
  }
}

TEST_F(CudaBackend, KernelsForOtherLengthsAreReadyForACaptureToo) {
  constexpr Device hopper{DeviceKind::cuda, 2};
  fake_driver().devices = 3;
  fake_driver().capability = 90;
  alignas(16) static std::byte numbers[1 << 18], results[1 << 18];
  const auto problem_of = [&](int64_t length) {
    const auto operand = TensorView::contiguous(numbers, DType::bfloat16, {2, length, 1, 16}, hopper);
    return Attention{.query = operand, .key = operand, .value = operand, .activation = Activation("s + 8")};
  };
  compile(problem_of(100), Direction::forward);
  fake_driver().is_capturing = true;
  for (const int64_t length : {1, 64, 65, 512, 513, 2000}) {
    forward(problem_of(length), MutableTensorView::contiguous(results, DType::bfloat16, {2, length, 1, 16}, hopper));
  }
  EXPECT_EQ(fake_driver().launches.size(), 6U);
}

/// The number of the child's check that failed, or 0. In a process of its own: the variable is read once.
template <class Work>
void expect_of_child(const char* most_kernels, Work work) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto child = [&] {
    ::setenv("GDPA_LOADED_KERNELS", most_kernels, 1);
    std::exit(work());
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

/// One kernel, different for each number.
void call_of(int number) { Call("s + " + std::to_string(100 + number)).forward(); }

TEST_F(CudaBackend, KernelsThatWereUsedLongestAgoAreUnloadedWhenThereAreTooMany) {
  expect_of_child("3", [] {
    for (const int number : {0, 1, 2, 0}) call_of(number);
    if (fake_driver().unloads != 0 || fake_driver().loads != 3) return 1;
    call_of(3);  // in the place of 1
    if (fake_driver().unloads != 1 || fake_driver().loads != 4) return 2;
    if (fake_driver().unloads_while_computing != 0) return 3;
    for (const int number : {0, 2, 3}) call_of(number);
    if (fake_driver().loads != 4) return 4;
    call_of(1);
    return fake_driver().loads == 5 ? 0 : 5;
  });
}

TEST_F(CudaBackend, AKernelOfACapturedGraphIsNeverUnloaded) {
  expect_of_child("2", [] {
    call_of(0);
    fake_driver().is_capturing = true;
    call_of(0);
    fake_driver().is_capturing = false;
    for (const int number : {1, 2, 3}) call_of(number);
    const int loads = fake_driver().loads;
    if (fake_driver().unloads != 2) return 1;
    call_of(0);
    return fake_driver().loads == loads ? 0 : 2;
  });
}

TEST_F(CudaBackend, KernelsAreUnloadedWhileAnotherThreadCapturesAGraph) {
  expect_of_child("3", [] {
    fake_driver().captures_elsewhere = true;
    for (const int number : {0, 1, 2, 3}) call_of(number);
    if (fake_driver().ended_captures != 0) return 1;
    return fake_driver().unloads == 1 && fake_driver().unloads_while_computing == 0 ? 0 : 2;
  });
}

TEST_F(CudaBackend, TheKernelsOfOneCallStayLoadedThoughTheyAreMoreThanTheBound) {
  expect_of_child("1", [] {
    Call call("s + 99", true);
    call.backward();
    const auto launched = fake_driver().launches.size();
    return launched >= 2 && fake_driver().loads >= 2 && fake_driver().unloads == 0 ? 0 : 1;
  });
}

TEST_F(CudaBackend, ABoundOfLoadedKernelsThatIsNoNumberIsRefused) {
  expect_of_child("many", [] {
    const std::string words = refusal_of([] { call_of(0); });
    return words.find("GDPA_LOADED_KERNELS: expected a whole number above 0, got \"many\"") == 0 ? 0 : 1;
  });
}

TEST_F(CudaBackend, MemoryThatIsNotThereIsSaidBeforeAnythingRuns) {
  Call call("s + 2");
  fake_driver().has_memory = false;
  const std::string words = refusal_of([&] { call.backward(); });
  EXPECT_EQ(
      words,
      "CUDA out of memory. gdpa, allocating the workspace of backward (workspace_bytes): the CUDA driver answered "
      "CUDA_ERROR_OUT_OF_MEMORY; free some memory of the GPU");
  EXPECT_TRUE(fake_driver().launches.empty());
}

TEST_F(CudaBackend, AKernelForWhichTheGpuHasNoMemoryIsAnErrorOfMemory) {
  Call call("s + 6");
  fake_driver().load_status = 2;
  try {
    call.forward();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << error.what();
    EXPECT_TRUE(std::string_view(error.what()).starts_with("CUDA out of memory.")) << error.what();
  }
}

/// A tensor map has strides below 2^40 bytes. The stride of a batch of one sequence is never used.
TEST_F(CudaBackend, OneSequenceMayBeLongerThanTheLargestStrideOfATensorMap) {
  fake_driver().devices = 2;
  fake_driver().capability = 90;
  constexpr int64_t rows = 1 << 30, heads = 16, head_dim = 128, bytes = rows * heads * head_dim * 2;
  const auto tensor = [&]<class View>(std::intptr_t number, View) {
    void* const data = reinterpret_cast<void*>(number * bytes);  // nothing reads or writes it
    return View::contiguous(data, DType::bfloat16, {1, rows, heads, head_dim}, GradientLayouts::hopper);
  };
  const TensorView query = tensor(1, TensorView());
  const Attention attention{.query = query, .key = query, .value = query};
  EXPECT_EQ(refusal_of([&] { forward(attention, tensor(2, MutableTensorView())); }), "");
  EXPECT_FALSE(fake_driver().launches.empty());
}

TEST_F(CudaBackend, ADriverThatRefusesAKernelIsNamedWithItsVersion) {
  Call call("s + 5");
  fake_driver().load_status = 209;
  fake_driver().version = 12040;
  const std::string words = refusal_of([&] { call.forward(); });
  EXPECT_NE(words.find("with a driver for CUDA 12.4"), std::string::npos) << words;
}

TEST_F(CudaBackend, DebugModeChecksOffsetsBeforeTheKernelsOfACall) {
  // In a process of its own: the variable is read once.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto child = [] {
    ::setenv("GDPA_CHECK_OFFSETS", "1", 1);
    Call call("s");
    call.forward();
    const auto& launches = fake_driver().launches;
    std::exit(launches.size() == 2 && launches[0].grid == 2 && launches[0].block == 256 ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaBackend, ThreadsThatNeedOneKernelLoadItOnce) {
  Call call("s + 7");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { compile(call.attention, Direction::forward); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_driver().loads, 1);
}

TEST_F(CudaBackend, ExplainListsEveryKernelOfTheCall) {
  const Call call("s + 6", true);
  const Plan forward = explain(call.attention, Direction::forward);
  const Plan backward = explain(call.attention, Direction::backward);
  ASSERT_EQ(forward.kernels.size(), 1U);
  ASSERT_EQ(backward.kernels.size(), 2U);
  for (const GpuKernel& kernel : backward.kernels) {
    EXPECT_EQ(kernel.architecture, "sm_90a");
    EXPECT_GT(kernel.shared_bytes, 0);
    EXPECT_EQ(kernel.threads % 32, 0);
    EXPECT_GT(kernel.ctas, 0);
  }
  EXPECT_EQ(forward.flops, 2.0 * Call::heads * 2 * Call::head_dim * (5 * 5 + 7 * 7));
}

TEST_F(CudaBackend, TheQueryIsAddedByTheLastKernelOfAPortableCallThatComputesItsResult) {
  Call call("s + 16");
  const auto last_kernel = [&](Direction direction, const WantedGradients& wanted) {
    return explain(call.attention, direction, "", wanted).kernels.back().name;
  };
  call.attention.add_query = true;
  EXPECT_EQ(last_kernel(Direction::forward, {}), "portable: add_rows Float32 d=16");
  EXPECT_EQ(last_kernel(Direction::backward, {}), "portable: add_rows Float32 d=16");
  EXPECT_EQ(last_kernel(Direction::backward, {.query = false}).find("add_rows"), std::string::npos);
  call.attention.add_query = false;
  EXPECT_EQ(last_kernel(Direction::forward, {}).find("add_rows"), std::string::npos);
}

/// Operands on a GPU with data that this process cannot read.
Attention unreadable(bool is_jagged, const Mask& mask) {
  const auto* const address = reinterpret_cast<const void*>(1 << 20);
  const auto view = [&](int64_t rows) {
    return is_jagged ? TensorView::contiguous(address, DType::bfloat16, {3 * rows, 2, 16}, gpu)
                     : TensorView::contiguous(address, DType::bfloat16, {3, rows, 2, 16}, gpu);
  };
  Attention attention{.query = view(5), .key = view(7), .value = view(7), .activation = Activation("s + 8")};
  attention.mask = mask;
  if (is_jagged) {
    attention.cu_seqlens_q = attention.cu_seqlens_k = TensorView::contiguous(address, DType::int32, {4}, gpu);
  }
  return attention;
}

TEST_F(CudaBackend, CountingFlopsIsArithmeticOnShapes) {
  const auto count = [](bool is_jagged, const Mask& mask, Direction direction) {
    return flops(unreadable(is_jagged, mask), direction);
  };
  fake_driver().is_capturing = true;
  constexpr double of_score = 2 * 2 * 16;  // heads, product and sum, columns
  // Three sequences of 5 queries and 7 keys; for the jagged ones these are the mean lengths.
  for (const bool is_jagged : {false, true}) {
    EXPECT_EQ(count(is_jagged, Mask::all(), Direction::forward), 3 * 5 * 7 * of_score * 2);
    EXPECT_EQ(count(is_jagged, Mask::all(), Direction::backward), 3 * 5 * 7 * of_score * 5);
    EXPECT_DOUBLE_EQ(count(is_jagged, Mask::causal(), Direction::forward), 3 * (3 + 4 + 5 + 6 + 7) * of_score * 2);
    EXPECT_DOUBLE_EQ(count(is_jagged, Mask::window(1, 0), Direction::forward), 3 * (5 * 2) * of_score * 2);
  }
  EXPECT_EQ(fake_driver().calls, 0);
  EXPECT_EQ(fake_driver().loads, 0);
  EXPECT_TRUE(fake_driver().launches.empty());
}

TEST(Target, AGpuOlderThanAmpereIsRefusedInWords) {
  EXPECT_EQ(gpu::why_unsupported(80), "");
  EXPECT_EQ(gpu::why_unsupported(121), "");
  EXPECT_EQ(gpu::why_unsupported(75),
            "expected compute capability 8.0 or later (Ampere), got 7.5; use a newer GPU, or the CPU");
}

TEST(Target, AnOldDeviceIsAnErrorOfTheCall) {
  fake_driver() = FakeDriver();
  fake_driver().capability = 70;
  EXPECT_NE(refusal_of([] { gpu::target_of(3); }).find("cuda:3: expected compute capability 8.0"), std::string::npos);
}

TEST(Target, AnArchitectureIsKnownByBothOfItsNames) {
  EXPECT_EQ(gpu::target_of("sm_90").architecture, "sm_90a");
  EXPECT_EQ(gpu::target_of("sm_90a").gpu.capability, 90);
  EXPECT_EQ(gpu::target_of("sm_80").architecture, "sm_80");
  for (const char* wrong : {"", "sm_75", "sm_80a", "sm_90b", "hopper", "90"}) {
    EXPECT_NE(refusal_of([&] { gpu::target_of(wrong); }).find("expected one of sm_80, sm_86"), std::string::npos);
  }
}

TEST(Gpus, AreListedWithTheirRates) {
  fake_driver() = FakeDriver();
  fake_driver().devices = 2;
  const std::vector<GpuDevice> gpus = list_gpus();
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[1].name, "Fake GPU");
  EXPECT_EQ(gpus[1].advice, "");
  EXPECT_DOUBLE_EQ(peak_flops(gpus[0], DType::bfloat16), 132 * 4096 * 1.98e9);
  EXPECT_DOUBLE_EQ(peak_flops(gpus[0], DType::float32), 132 * 4096 * 1.98e9 / 6);
  EXPECT_EQ(peak_flops(gpus[0], DType::float64), 0);
  EXPECT_NEAR(gpus[0].bytes_per_second, 4.917e12, 1e9);
  fake_driver().capability = 75;
  EXPECT_NE(list_gpus()[0].advice, "");
}

}  // namespace
}  // namespace gdpa
