// See prepared_tiles.h. The text is a list of whole numbers.
#include "plan/prepared_tiles.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <iterator>
#include <locale>
#include <sstream>
#include <type_traits>

#include "gdpa/error.h"

namespace gdpa::plan {
namespace {

constexpr int64_t version = 2;  // of the text

/// Calls visit(member) for all members of the text but the number of lists.
template <class Call, class Visit>
void visit_call(Call& call, const Visit& visit) {
  visit(call.batch), visit(call.rows_q), visit(call.rows_k), visit(call.heads_q), visit(call.heads_k);
  visit(call.query_form), visit(call.key_form), visit(call.device.kind), visit(call.device.index);
  visit(call.mask);
}
template <class Lists, class Visit>
void visit_lists(Lists& lists, const Visit& visit) {
  visit(lists.tile_queries), visit(lists.tile_keys), visit(lists.has_query_lists), visit(lists.heads);
  visit(lists.heads_of_list), visit(lists.capacity), visit(lists.entries), visit(lists.key_tiles);
  visit(lists.query_tiles);
}

[[noreturn]] void refuse() {
  throw Error(ErrorKind::value,
              "prepared_mask: expected the result of prepare_mask of this version of gdpa, got another text; prepare "
              "the mask again");
}

}  // namespace

ListedCall ListedCall::of(const Problem& problem, const std::string& mask_identity) {
  ListedCall call;
  call.batch = problem.batch;
  call.rows_q = problem.rows_q;
  call.rows_k = problem.rows_k;
  call.heads_q = problem.heads_q;
  call.heads_k = problem.heads_k;
  call.query_form = problem.query_form;
  call.key_form = problem.key_form;
  call.device = problem.device;
  call.mask = XXH64(mask_identity.data(), mask_identity.size(), problem.mask_types) >> 1;  // a positive int64_t
  return call;
}

std::string PreparedTiles::text() const {
  std::string text;
  const auto append = [&text](auto number) {
    fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : " ", static_cast<int64_t>(number));
  };
  append(version);
  append(bytes);
  visit_call(call, append);
  append(lists.size());
  for (const TileListsPlan& one : lists) visit_lists(one, append);
  return text;
}

PreparedTiles PreparedTiles::of_text(const std::string& text) {
  PreparedTiles tiles;
  std::istringstream numbers(text);
  numbers.imbue(std::locale::classic());
  const auto read = [&numbers](auto& number) {
    int64_t whole = 0;
    if (!(numbers >> whole)) refuse();
    number = static_cast<std::decay_t<decltype(number)>>(whole);
  };
  int64_t of_text = 0, count = 0;
  read(of_text);
  if (of_text != version) refuse();
  read(tiles.bytes);
  visit_call(tiles.call, read);
  read(count);
  for (int64_t i = 0; i < count; ++i) visit_lists(tiles.lists.emplace_back(), read);
  if (!numbers.eof()) refuse();
  return tiles;
}

}  // namespace gdpa::plan
