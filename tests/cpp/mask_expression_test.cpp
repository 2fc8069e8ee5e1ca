// MaskExpression: the language of masks, their errors, and the checks of a call with a mask expression.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gdpa/gdpa.h"

namespace gdpa::test {
namespace {

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string message(const std::string& text, const std::vector<std::string>& tensors = {}) {
  return message_of([&] { MaskExpression(text, {}, tensors); });
}

TEST(MaskExpression, KeepsTheScoresWhoseConditionHolds) {
  const MaskExpression causal("kv_idx <= q_idx + len_k - len_q");
  const MaskExpression odd("((q_idx - kv_idx) % 3 == 0) & ~(head == 1) | (batch // 2 > n)", {{"n", 1}});
  for (int64_t b = 0; b < 5; ++b) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 7; ++j) {
          const ScorePlace place{b, h, i, j, 5, 7};
          EXPECT_EQ(causal.keeps(place), j <= i + 2);
          EXPECT_EQ(odd.keeps(place), ((i - j + 9) % 3 == 0 && h != 1) || b / 2 > 1);
        }
      }
    }
  }
}

/// Whether a mask keeps the same scores as a condition in C++, with more keys than queries and the other way round.
void expect_scores(const MaskExpression& mask, const std::function<bool(const ScorePlace&)>& keeps) {
  SCOPED_TRACE(mask.text());
  for (const auto& [length_q, length_k] : {std::pair{6, 11}, std::pair{9, 7}, std::pair{20, 20}}) {
    for (int64_t i = 0; i < length_q; ++i) {
      for (int64_t j = 0; j < length_k; ++j) {
        const ScorePlace place{0, 1, i, j, length_q, length_k};
        EXPECT_EQ(mask.keeps(place), keeps(place)) << i << ", " << j << " of " << length_q << " x " << length_k;
      }
    }
  }
}

int64_t row(const ScorePlace& at) { return at.q_idx + at.len_k - at.len_q; }

TEST(MaskExpression, HasTheNamedMasks) {
  const auto is_causal = [](const ScorePlace& at) { return at.kv_idx <= row(at); };
  expect_scores(MaskExpression("causal()"), is_causal);
  expect_scores(MaskExpression("window(3, 2)"),
                [](const ScorePlace& at) { return row(at) - at.kv_idx <= 3 && at.kv_idx - row(at) <= 2; });
  expect_scores(MaskExpression("window(-1, 2)"), [](const ScorePlace& at) { return at.kv_idx - row(at) <= 2; });
  expect_scores(MaskExpression("window(w * head, -1)", {{"w", 4}}),
                [](const ScorePlace& at) { return row(at) - at.kv_idx <= 4; });
  expect_scores(MaskExpression("window(-1, -1)"), [](const ScorePlace&) { return true; });
  expect_scores(MaskExpression("prefix(4) | causal()"),
                [&](const ScorePlace& at) { return at.kv_idx < 4 || is_causal(at); });
  expect_scores(MaskExpression("~interval(2, 5) & (interval(0, q_idx) | interval(6, 8))"), [](const ScorePlace& at) {
    return (at.kv_idx < 2 || at.kv_idx >= 5) && (at.kv_idx < at.q_idx || (at.kv_idx >= 6 && at.kv_idx < 8));
  });
}

/// The rule of the docstring of gdpa.mask.hstu (python/gdpa/mask.py).
bool hstu_keeps(const ScorePlace& at, int64_t contexts, int64_t targets, int64_t group, int64_t window) {
  const int64_t end = at.len_k - targets, r = row(at);
  if (r < contexts && at.kv_idx < end) return true;
  const bool is_near = window < 0 || r - at.kv_idx <= window || at.kv_idx < contexts;
  if (at.kv_idx > r || !is_near) return false;
  return r < end || at.kv_idx < end || at.kv_idx >= end + (r - end) / group * group;
}

TEST(MaskExpression, HasTheMaskOfHstu) {
  for (const int64_t contexts : {0, 2, 30}) {
    for (const int64_t targets : {0, 4, 7}) {
      for (const int64_t group : {1, 3}) {
        for (const int64_t window : {-1, 0, 4}) {
          const std::map<std::string, double> constants = {{"c", static_cast<double>(contexts)},
                                                           {"t", static_cast<double>(targets)},
                                                           {"g", static_cast<double>(group)}};
          const std::string text = "hstu(c, t, g, " + std::to_string(window) + ")";
          expect_scores(MaskExpression(text, constants),
                        [&](const ScorePlace& at) { return hstu_keeps(at, contexts, targets, group, window); });
        }
      }
    }
  }
  expect_scores(MaskExpression("hstu(2, 4)"), [](const ScorePlace& at) { return hstu_keeps(at, 2, 4, 1, -1); });
}

TEST(MaskExpression, AFunctionMayUseANamedMask) {
  const ScoreDefinition score(Activation("where(window(1, 0), s, 0)"), 1);
  const auto value = [&](int64_t i, int64_t j) {
    return score.evaluate({.q_idx = i, .kv_idx = j, .len_q = 9, .len_k = 9}, 2.5, [](const TensorRead&) { return 0.0; })
        .value;
  };
  EXPECT_EQ(value(4, 4), 2.5);
  EXPECT_EQ(value(4, 3), 2.5);
  EXPECT_EQ(value(4, 2), 0);
  EXPECT_EQ(value(4, 5), 0);
}

TEST(MaskExpressionErrors, OfNamedMasks) {
  EXPECT_EQ(message("causal(3)"),
            "mask: causal takes 0 arguments, but 1 came\n"
            "    causal(3)\n"
            "    ^");
  EXPECT_NE(message("hstu(1)").find("hstu takes 2 to 4 arguments, but 1 came"), std::string::npos);
  EXPECT_NE(message("hstu(1, 2, 0)").find("expected a group of at least 1 target"), std::string::npos);
  EXPECT_NE(message("window(-2, 0)").find("expected at least 0 keys, or -1 for no bound"), std::string::npos);
  EXPECT_NE(message("prefix(kv_idx < 3)").find("expected a number, but a comparison came"), std::string::npos);
  EXPECT_NE(message("cuasal()").find("did you mean \"causal\"?"), std::string::npos);
  EXPECT_EQ(message("kv_idx < prefix[batch]", {"prefix"}), "no error") << "a tensor may have the name of a mask";
}

TEST(MaskExpression, ReadsElementsOfTensors) {
  const MaskExpression prefix("kv_idx < lengths[batch]", {}, {"lengths"});
  const auto read = [](const TensorRead& at) {
    return std::vector<double>{2, 0, 4}[static_cast<std::size_t>(at.indices[0])];
  };
  EXPECT_TRUE(prefix.keeps({.batch = 0, .kv_idx = 1}, read));
  EXPECT_FALSE(prefix.keeps({.batch = 0, .kv_idx = 2}, read));
  EXPECT_FALSE(prefix.keeps({.batch = 1, .kv_idx = 0}, read));
  EXPECT_TRUE(prefix.keeps({.batch = 2, .kv_idx = 3}, read));
}

TEST(MaskExpression, HasOneCanonicalTextWithItsConstants) {
  const MaskExpression one("(kv_idx<=q_idx)&(q_idx-kv_idx<n)", {{"n", 128}});
  EXPECT_EQ(one.text(), "(kv_idx <= q_idx) & (q_idx - kv_idx < n) with n = 128");
  EXPECT_EQ(&MaskExpression(one.text()).function(), &one.function());
  EXPECT_EQ(MaskExpression("kv_idx < t[q_idx]", {}, {"t"}).tensors(), std::vector<std::string>{"t"});
}

TEST(MaskExpressionErrors, NameTheMaskAndMarkTheFault) {
  EXPECT_EQ(message("kv_idx - q_idx"),
            "mask: expected a condition, but a number came\n"
            "    kv_idx - q_idx\n"
            "    ^\n"
            "compare it: (kv_idx <= q_idx) & (kv_idx < 100)");
  EXPECT_EQ(message("(kv_idx <= q_idx) & (s > 0)"),
            "mask: a mask does not read the score s\n"
            "    (kv_idx <= q_idx) & (s > 0)\n"
            "                         ^\n"
            "use positions and tensors of the call");
  EXPECT_EQ(message(""), "mask: expected a condition (kv_idx <= q_idx), but the text is empty");
  EXPECT_NE(message("gelu").find("mask: "), std::string::npos);
  EXPECT_NE(message("kv_idx <= q_idx; kv_idx < 3").find("expected an operator or the end, but \";\" came"),
            std::string::npos);
  EXPECT_NE(message("kv_idx < n").find("n"), std::string::npos);
  EXPECT_NE(message("kv_idx < t[q_idx]").find("no tensor is given for t"), std::string::npos);
  EXPECT_NE(message("t[kv_idx / 2] == 0", {"t"}).find("is no integer; round it with floor()"), std::string::npos);
}

TEST(MaskExpressionErrors, AMaskAndAFunctionOfOneTextStayApart) {
  EXPECT_EQ(MaskExpression("kv_idx <= q_idx").text(), "kv_idx <= q_idx");
  EXPECT_NE(message_of([] { Activation("kv_idx <= q_idx"); }).find("activation: expected a number"), std::string::npos);
  EXPECT_EQ(Activation("silu").text(), "silu");
  EXPECT_NE(message("silu").find("mask: "), std::string::npos);
}

/// One sequence of four queries and keys.
struct Call {
  std::vector<float> rows = std::vector<float>(4 * 8, 0.5F);
  std::vector<float> output = std::vector<float>(4 * 8);
  std::vector<int> lengths = {3};

  TensorView operand() const { return TensorView::contiguous(rows.data(), DType::float32, {1, 4, 1, 8}); }
  Attention attention() const { return {.query = operand(), .key = operand(), .value = operand()}; }
  Parameter named(const std::string& name) const {
    return {name, TensorView::contiguous(lengths.data(), DType::int32, {1})};
  }
  std::string error(const Attention& attention) {
    return message_of([&] {
      forward(attention, MutableTensorView::contiguous(output.data(), DType::float32, {1, 4, 1, 8}));
    });
  }
};

TEST(MaskExpressionErrors, TheChecksOfACallNameTheMask) {
  Call call;
  Attention attention = call.attention();
  attention.mask_expression = MaskExpression("kv_idx < lengths[batch]", {}, {"lengths"});
  attention.mask_parameters = {call.named("lengths")};
  EXPECT_EQ(call.error(attention), "no error");

  attention.mask = Mask::causal();
  EXPECT_EQ(call.error(attention),
            "mask: expected a window or an expression, got both; spell the window in the expression: "
            "(kv_idx <= q_idx + len_k - len_q) & ...");
  attention.mask = {};

  attention.mask_parameters = {};
  EXPECT_EQ(call.error(attention),
            "mask_parameters: expected a tensor for each parameter of the call (lengths), got 0; pass the missing "
            "tensors");
  attention.mask_parameters = {call.named("others")};
  EXPECT_EQ(call.error(attention),
            "mask parameter others: expected a parameter of the call (lengths), got another name; name it in the "
            "MaskExpression, or leave it out");
  attention.mask_parameters = {call.named("lengths"), call.named("lengths")};
  EXPECT_NE(call.error(attention).find("mask parameter lengths: expected one tensor, got two"), std::string::npos);

  attention.mask_expression = {};
  EXPECT_NE(call.error(attention).find("mask_parameters: expected a mask expression that reads them"),
            std::string::npos);
}

TEST(MaskExpression, FlopsCountTheKeptScores) {
  Call call;
  Attention attention = call.attention();
  const double all = flops(attention, Direction::forward);
  attention.mask_expression = MaskExpression("kv_idx <= q_idx");
  EXPECT_EQ(flops(attention, Direction::forward), all * 10 / 16);
  EXPECT_EQ(explain(attention, Direction::forward).flops, all * 10 / 16);
  attention.mask_expression = MaskExpression("kv_idx < lengths[batch]", {}, {"lengths"});
  attention.mask_parameters = {call.named("lengths")};
  EXPECT_EQ(flops(attention, Direction::forward), all * 12 / 16);
  attention.mask_parameters[0].value.data = nullptr;
  EXPECT_EQ(flops(attention, Direction::forward), all);
}

}  // namespace
}  // namespace gdpa::test
