// The gradient of a dense bias that backward stores, in rows that begin between chunks of 16 bytes. A chunk then has
// elements of two key tiles, of which backward may visit one. The kernel complete_terms must not overwrite its
// elements.
#include <gtest/gtest.h>

#include <cstdint>

#include "definition.h"

namespace gdpa::test {
namespace {

TEST(StoredTerms, OfAVisitedTileStayNextToATileThatIsNotVisited) {
  const ScoreCase of = {.name = "bias",
                        .text = "tanh(s + bias[batch, head, q_idx, kv_idx])",
                        .tensors = {{"bias", DType::bfloat16, {3, 2, 340, 302}}},
                        .inputs =
                            [](const ScoreProblem& problem, const Place& at) {
                              const int64_t element = ((at.b * 2 + at.head) * 340 + at.i) * 302 + at.j;
                              return ScoreInputs{1, problem.number(0, element), {{0, element, false}}};
                            },
                        .queries = {Form::jagged, {150, 0, 333}},
                        .keys = {Form::jagged, {300, 5, 229}},
                        .head_dim = 128,
                        .mask = Mask::causal(),
                        .has_rounded_gradients = true};
  EXPECT_TRUE(expect_definition(of).stores_terms);
}

}  // namespace
}  // namespace gdpa::test
