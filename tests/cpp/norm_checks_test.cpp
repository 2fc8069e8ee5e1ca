// The checks of norms refuse every wrong argument, on a machine without a GPU too, and say which.
#include "api/norm_checks.h"

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gdpa/error.h"

namespace gdpa::api {
namespace {

constexpr int64_t rows = 3, heads = 2, columns = 16;  // of a head

/// A correct call. Each row has two heads, and the tensors do not overlap in memory. The checks do not read elements.
struct Call {
  std::vector<float> memory = std::vector<float>(4096);
  Norm norm;
  MutableTensorView y, statistics;
  TensorView grad_y;
  NormGradients gradients;

  Call() {
    norm.x = input(0, {rows, heads, columns});
    norm.weight = input(1, {heads * columns});
    norm.bias = input(2, {heads * columns});
    norm.gate = input(3, {rows, heads, columns});
    norm.residual = input(4, {rows, heads * columns});
    y = result(5, {rows, heads, columns});
    statistics = result(6, {rows, 2});
    grad_y = input(7, {rows, heads, columns});
    gradients = {result(8, {rows, heads, columns}), result(9, {heads * columns}), result(10, {heads * columns}),
                 result(11, {rows, heads, columns})};
  }

  TensorView input(int place, std::initializer_list<int64_t> sizes) {
    return TensorView::contiguous(memory.data() + 256 * place, DType::float32, sizes, {DeviceKind::cuda, 0});
  }
  MutableTensorView result(int place, std::initializer_list<int64_t> sizes) {
    return MutableTensorView::contiguous(memory.data() + 256 * place, DType::float32, sizes, {DeviceKind::cuda, 0});
  }

  TensorView read_statistics() const {
    return {statistics.data, statistics.dtype, statistics.device,
            statistics.rank, statistics.sizes, statistics.strides};
  }
  void check_forward() const { check_norm_forward(norm, y, statistics); }
  void check_backward() const { check_norm_backward(norm, grad_y, read_statistics(), gradients); }
};

using Check = void (Call::*)() const;

/// The argument that the error names, or "accepted".
std::string refused(Check check, const std::function<void(Call&)>& spoil) {
  Call call;
  spoil(call);
  try {
    (call.*check)();
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.substr(0, message.find(':'));
  }
  return "accepted";
}

std::string forward(const std::function<void(Call&)>& spoil) { return refused(&Call::check_forward, spoil); }
std::string backward(const std::function<void(Call&)>& spoil) { return refused(&Call::check_backward, spoil); }

TEST(NormChecks, AcceptACallWithEveryTensorAndWithX) {
  EXPECT_EQ(forward([](Call&) {}), "accepted");
  EXPECT_EQ(backward([](Call&) {}), "accepted");
  const auto leave_out = [](Call& c) {
    c.norm.weight.reset(), c.norm.bias.reset(), c.norm.gate.reset(), c.norm.residual.reset();
    c.gradients.weight = c.gradients.bias = c.gradients.gate = {};
  };
  EXPECT_EQ(forward(leave_out), "accepted");
  EXPECT_EQ(backward(leave_out), "accepted");
}

TEST(NormChecks, NameTheTensorThatDoesNotFit) {
  const auto both = [](const std::function<void(Call&)>& spoil) {
    const std::string one = forward(spoil);
    EXPECT_EQ(backward(spoil), one);
    return one;
  };
  EXPECT_EQ(both([](Call& c) { c.norm.x.device = {}; }), "x");
  EXPECT_EQ(both([](Call& c) { c.norm.x.rank = 1; }), "x");
  EXPECT_EQ(both([](Call& c) { c.norm.x.dtype = DType::float64; }), "x");
  EXPECT_EQ(both([](Call& c) { c.norm.x.sizes[2] = 4096; }), "x");
  EXPECT_EQ(both([](Call& c) { c.norm.x.strides[2] = 2; }), "x");
  EXPECT_EQ(both([](Call& c) { c.norm.x.data = nullptr; }), "x");
  EXPECT_EQ(both([](Call& c) { c.norm.eps = -1; }), "eps");
  EXPECT_EQ(both([](Call& c) { c.norm.eps = std::numeric_limits<double>::quiet_NaN(); }), "eps");
  EXPECT_EQ(both([](Call& c) { c.norm.weight->sizes[0] = columns; }), "weight");
  EXPECT_EQ(both([](Call& c) { c.norm.weight->device.index = 1; }), "weight");
  EXPECT_EQ(both([](Call& c) { c.norm.weight->dtype = DType::bfloat16; }), "weight");
  EXPECT_EQ(both([](Call& c) { c.norm.bias->strides[0] = 2; }), "bias");
  EXPECT_EQ(both([](Call& c) { c.norm.bias->dtype = DType::bfloat16; }), "bias") << "another dtype than the weight";
  EXPECT_EQ(both([](Call& c) { c.norm.gate->sizes[0] = rows + 1; }), "gate");
  EXPECT_EQ(both([](Call& c) { c.norm.residual->dtype = DType::float16; }), "residual");
  EXPECT_EQ(both([](Call& c) { c.statistics.sizes[1] = 3; }), "statistics");
  EXPECT_EQ(forward([](Call& c) { c.y.sizes[2] = 8; }), "y");
  EXPECT_EQ(backward([](Call& c) { c.grad_y.sizes[0] = rows - 1; }), "grad_y");
  EXPECT_EQ(backward([](Call& c) { c.gradients.weight.dtype = DType::float16; }), "grad_weight");
  EXPECT_EQ(backward([](Call& c) { c.gradients = {}; }), "norm_backward");
}

TEST(NormChecks, HeadsOfAMultipleOf8ColumnsFrom8To4096InAll) {
  const auto is_accepted = [](int64_t width) {
    return forward([width](Call& c) {
             c.norm.weight.reset(), c.norm.bias.reset(), c.norm.gate.reset(), c.norm.residual.reset();
             c.norm.x = c.input(0, {0, width});
             c.y = c.result(5, {0, width});
             c.statistics = c.result(6, {0, 2});
           }) == "accepted";
  };
  for (const int64_t width : {8, 16, 4096}) EXPECT_TRUE(is_accepted(width)) << width;
  for (const int64_t width : {0, 4, 12, 4104}) EXPECT_FALSE(is_accepted(width)) << width;
}

TEST(NormChecks, AGradientHasATensor) {
  EXPECT_EQ(backward([](Call& c) { c.norm.weight.reset(); }), "grad_weight");
  EXPECT_EQ(backward([](Call& c) { c.norm.bias.reset(); }), "grad_bias");
  EXPECT_EQ(backward([](Call& c) { c.norm.gate.reset(); }), "grad_gate");
}

TEST(NormChecks, EachElementOfAResultHasAnAddressOfItsOwn) {
  EXPECT_EQ(forward([](Call& c) { c.y.strides = {40, 20, 1}; }), "accepted");
  EXPECT_EQ(forward([](Call& c) { c.y.strides = {32, 15, 1}; }), "y") << "heads overlap";
  EXPECT_EQ(forward([](Call& c) { c.y.strides = {31, 16, 1}; }), "y") << "rows overlap";
  EXPECT_EQ(forward([](Call& c) { c.y.strides = {0, 16, 1}; }), "y");
  EXPECT_EQ(backward([](Call& c) { c.gradients.x.strides = {31, 16, 1}; }), "grad_x");
}

TEST(NormChecks, NoResultOverlapsAnInputOrAnotherResult) {
  EXPECT_EQ(forward([](Call& c) { c.y.data = const_cast<void*>(c.norm.residual->data); }), "y");
  EXPECT_EQ(forward([](Call& c) { c.statistics.data = c.y.data; }), "statistics");
  using Result = MutableTensorView NormGradients::*;
  const std::vector<std::pair<Result, std::string>> results = {{&NormGradients::x, "grad_x"},
                                                               {&NormGradients::gate, "grad_gate"},
                                                               {&NormGradients::weight, "grad_weight"},
                                                               {&NormGradients::bias, "grad_bias"}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& [later, name] = results[i];
    for (std::size_t j = 0; j < i; ++j) {
      const Result earlier = results[j].first;
      EXPECT_EQ(backward([&](Call& c) { (c.gradients.*later).data = (c.gradients.*earlier).data; }), name);
    }
    for (const std::optional<TensorView> Norm::*const input : {&Norm::weight, &Norm::bias, &Norm::gate}) {
      EXPECT_EQ(backward([&](Call& c) { (c.gradients.*later).data = const_cast<void*>((c.norm.*input)->data); }), name);
    }
    EXPECT_EQ(backward([&](Call& c) { (c.gradients.*later).data = c.statistics.data; }), name);
    EXPECT_EQ(backward([&](Call& c) { (c.gradients.*later).data = const_cast<void*>(c.grad_y.data); }), name);
    EXPECT_EQ(backward([&](Call& c) { (c.gradients.*later).data = const_cast<void*>(c.norm.x.data); }), name);
  }
}

}  // namespace
}  // namespace gdpa::api
