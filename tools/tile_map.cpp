// See tile_map.h. libpng writes the picture.
#include "tile_map.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "tensor_numbers.h"

namespace gdpa::tool {
namespace {

int64_t divide_up(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

/// The first row of an entry in its operand.
int64_t first_row(const std::vector<int64_t>& lengths, Form form, int64_t entry) {
  if (form == Form::shared) return 0;
  int64_t row = 0;
  for (int64_t b = 0; b < entry; ++b) row += lengths[static_cast<std::size_t>(b)];
  return row;
}

using Colour = std::array<unsigned char, 3>;
constexpr Colour full_score = {31, 84, 145}, kept_score = {116, 173, 209}, masked_score = {253, 208, 162},
                 empty_score = {255, 255, 255}, grid_line = {150, 150, 150};

Colour colour_of(Tile tile, bool is_kept) {
  if (tile == Tile::empty) return empty_score;
  if (tile == Tile::full) return full_score;
  return is_kept ? kept_score : masked_score;
}

}  // namespace

KeptScores::KeptScores(const Problem& problem, const Workload& workload, int64_t entry, int64_t head)
    : length_q_(problem.lengths_q[static_cast<std::size_t>(entry)]),
      length_k_(problem.lengths_k[static_cast<std::size_t>(entry)]),
      kept_(static_cast<std::size_t>(length_q_ * length_k_)) {
  const TensorNumbers of_mask(problem.mask_tensors, workload.mask_tensors);
  const int64_t first_q = first_row(problem.lengths_q, problem.form_q, entry),
                first_k = first_row(problem.lengths_k, problem.form_k, entry);
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t i = next++; i < length_q_; i = next++) {
      for (int64_t j = 0; j < length_k_; ++j) {
        const ScorePlace place{entry, head, i, j, length_q_, length_k_, first_q + i, first_k + j};
        kept_[static_cast<std::size_t>(i * length_k_ + j)] = keeps(problem, of_mask, place) ? 1 : 0;
      }
    }
  };
  std::vector<std::thread> crew;
  for (unsigned t = 1; t < std::max(1U, std::thread::hardware_concurrency()); ++t) crew.emplace_back(work);
  work();
  for (std::thread& thread : crew) thread.join();
}

TileMap::TileMap(const KeptScores& scores, int64_t tile_queries, int64_t tile_keys)
    : tile_queries_(tile_queries),
      tile_keys_(tile_keys),
      rows_(divide_up(scores.length_q(), tile_queries)),
      columns_(divide_up(scores.length_k(), tile_keys)) {
  int64_t all_kept = 0, computed = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t end_q = std::min(scores.length_q(), (row + 1) * tile_queries);
    for (int64_t column = 0; column < columns_; ++column) {
      const int64_t end_k = std::min(scores.length_k(), (column + 1) * tile_keys);
      int64_t kept = 0;
      for (int64_t i = row * tile_queries; i < end_q; ++i) {
        for (int64_t j = column * tile_keys; j < end_k; ++j) kept += scores.at(i, j) ? 1 : 0;
      }
      const int64_t size = (end_q - row * tile_queries) * (end_k - column * tile_keys);
      tiles_.push_back(kept == 0 ? Tile::empty : kept == size ? Tile::full : Tile::partial);
      all_kept += kept;
      if (kept > 0) computed += size;
    }
  }
  if (computed > 0) used_ = static_cast<double>(all_kept) / static_cast<double>(computed);
}

int64_t TileMap::count(Tile tile) const { return std::count(tiles_.begin(), tiles_.end(), tile); }

std::vector<std::string> TileMap::lines(int64_t most) const {
  const int64_t step = std::max<int64_t>(1, divide_up(std::max(rows_, columns_), most));
  std::vector<std::string> result;
  for (int64_t row = 0; row < rows_; row += step) {
    std::string& text = result.emplace_back();
    for (int64_t column = 0; column < columns_; column += step) {
      bool has_empty = false, has_full = false, has_partial = false;
      for (int64_t r = row; r < std::min(rows_, row + step); ++r) {
        for (int64_t c = column; c < std::min(columns_, column + step); ++c) {
          has_empty |= at(r, c) == Tile::empty;
          has_full |= at(r, c) == Tile::full;
          has_partial |= at(r, c) == Tile::partial;
        }
      }
      text += has_partial || (has_empty && has_full) ? '+' : has_full ? '#' : '.';
    }
  }
  return result;
}

std::string TileMap::summary() const {
  return fmt::format(
      "{} x {} tiles of {} queries x {} keys: {} full (#), {} partial (+), {} empty (.); {:.0f} % of the computed "
      "scores are kept",
      rows_, columns_, tile_queries_, tile_keys_, count(Tile::full), count(Tile::partial), count(Tile::empty),
      100 * used_);
}

Json TileMap::to_json() const {
  return {{"tile_queries", tile_queries_},           {"tile_keys", tile_keys_},     {"full", count(Tile::full)},
          {"partial", count(Tile::partial)},         {"empty", count(Tile::empty)}, {"kept_of_computed", used_},
          {"rows", lines(std::max(rows_, columns_))}};
}

void write_picture(const std::string& path, const KeptScores& scores, const TileMap& tiles) {
  if (path.size() < 4 || path.compare(path.size() - 4, 4, ".png") != 0) {
    throw UsageError(fmt::format("--tile-map: expected a file name that ends in .png; got '{}'", path));
  }
  // A pixel is one score, or the score at its upper left where sequences are longer than the picture.
  constexpr int64_t most_pixels = 1024, least_pixels = 512;
  const int64_t longest = std::max<int64_t>({1, scores.length_q(), scores.length_k()});
  const int64_t scores_of_pixel = divide_up(longest, most_pixels);
  const int64_t pixels_of_score = std::max<int64_t>(1, least_pixels / longest);
  const auto pixels = [&](int64_t length) {
    return std::max<int64_t>(1, divide_up(length, scores_of_pixel)) * pixels_of_score;
  };
  const int64_t width = pixels(scores.length_k()), height = pixels(scores.length_q());
  const auto position = [&](int64_t pixel) { return pixel / pixels_of_score * scores_of_pixel; };
  const auto is_line = [&](int64_t pixel, int64_t tile) {
    return pixel > 0 && position(pixel) / tile != position(pixel - 1) / tile;
  };
  std::vector<unsigned char> image(static_cast<std::size_t>(width * height * 3), 255);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int64_t i = position(y), j = position(x);
      if (i >= scores.length_q() || j >= scores.length_k()) continue;
      const bool has_line = is_line(y, tiles.tile_queries()) || is_line(x, tiles.tile_keys());
      const Colour colour =
          has_line ? grid_line : colour_of(tiles.at(i / tiles.tile_queries(), j / tiles.tile_keys()), scores.at(i, j));
      std::memcpy(image.data() + (y * width + x) * 3, colour.data(), colour.size());
    }
  }
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(width);
  png.height = static_cast<png_uint_32>(height);
  png.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&png, path.c_str(), 0, image.data(), 0, nullptr) == 0) {
    throw MachineError(fmt::format("{}: the file cannot be written: {}", path, png.message));
  }
}

}  // namespace gdpa::tool
