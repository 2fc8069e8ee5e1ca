// The checks of a mask: a window, or an expression, which may be prepared.
#include <algorithm>

#include "api/check_parts.h"
#include "api/message.h"
#include "plan/prepared_tiles.h"

namespace gdpa::api {
namespace {

/// The operands in one word: "jagged queries and dense keys".
std::string forms_of(const plan::ListedCall& call) {
  const auto form = [](Form of) { return of == Form::jagged ? "jagged" : of == Form::dense ? "dense" : "shared"; };
  return fmt::format("{} queries and {} keys", form(call.query_form), form(call.key_form));
}

/// Whether the mask may differ between the query heads.
bool depends_on_head(const activation::Function& mask, const BoundTensors& tensors) {
  const std::vector<activation::Input>& inputs = mask.inputs();
  return std::any_of(inputs.begin(), inputs.end(), [&](const activation::Input& input) {
    if (input.kind == activation::Input::Kind::index) return input.index == activation::Index::head;
    const BoundTensor& tensor = tensors[input.tensor];
    return input.kind == activation::Input::Kind::number && tensor.rank == 1 && tensor.sizes[0] > 1;
  });
}

}  // namespace

void check_window(const Mask& mask) {
  for (const int64_t side : {mask.left, mask.right}) {
    if (side < -1) {
      refuse("window", "sides of 0 or more, or -1 for no bound", side, "correct the window");
    }
  }
}

void check_mask_expression(const Attention& attention, const Common& common, Problem& problem, Params& params) {
  if (!attention.mask_expression) {
    if (attention.mask_parameters.empty()) return;
    refuse("mask_parameters", "a mask expression that reads them", "none", "set mask_expression, or leave them out");
  }
  if (!attention.mask.keeps_all()) {
    refuse("mask", "a window or an expression", "both",
           "spell the window in the expression: (kv_idx <= q_idx + len_k - len_q) & ...");
  }
  const activation::Function& mask = attention.mask_expression->function();
  problem.mask_types = check_tensors(of_mask, mask, attention.mask_parameters, common, problem, params.mask_parameters);
  problem.has_mask_expression = true;
  problem.mask_depends_on_head = depends_on_head(mask, params.mask_parameters);
}

std::shared_ptr<const plan::PreparedTiles> check_prepared_mask(const Attention& attention, const Problem& problem,
                                                               bool needs_data) {
  if (!attention.prepared_mask) return nullptr;
  constexpr std::string_view who = "prepared_mask", remedy = "prepare the mask with the arguments of this call";
  const PreparedMask& mask = *attention.prepared_mask;
  if (!attention.mask_expression) {
    refuse(who, "a mask expression with it", "none", "set mask_expression to the prepared one");
  }
  auto prepared = std::make_shared<plan::PreparedTiles>(plan::PreparedTiles::of_text(mask.tiles));
  const plan::ListedCall& of = prepared->call;
  const plan::ListedCall call = plan::ListedCall::of(problem, attention.mask_expression->function().identity());
  if (of.device != call.device) {
    refuse(who, fmt::format("a mask that is prepared on {}", to_string(call.device)),
           fmt::format("one on {}", to_string(of.device)), remedy);
  }
  if (of.mask != call.mask) {
    refuse(who, "the mask of this call, with the same types of tensors", "another mask", remedy);
  }
  if (of.query_form != call.query_form || of.key_form != call.key_form) {
    refuse(who, fmt::format("a mask for {}", forms_of(call)), fmt::format("one for {}", forms_of(of)), remedy);
  }
  const auto check = [&](std::string_view what, int64_t wanted, int64_t given) {
    if (given == wanted) return;
    refuse(who, fmt::format("a mask for {} {}", wanted, what), fmt::format("one for {}", given), remedy);
  };
  check("batch entries", call.batch, of.batch);
  check("rows of query", call.rows_q, of.rows_q);
  check("rows of key", call.rows_k, of.rows_k);
  check("query heads", call.heads_q, of.heads_q);
  check("key heads", call.heads_k, of.heads_k);
  if (needs_data && prepared->bytes > 0 && (mask.data == nullptr || mask.bytes < prepared->bytes)) {
    refuse(who, fmt::format("{} bytes of device memory", prepared->bytes),
           mask.data == nullptr ? "a null pointer" : fmt::format("{}", mask.bytes), "keep the memory of prepare_mask");
  }
  prepared->data = mask.data;
  return prepared;
}

}  // namespace gdpa::api
