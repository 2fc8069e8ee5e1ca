// The tile map of a mask: which tiles of the scores of one sequence and head are empty, partial or full.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.h"
#include "terminal.h"
#include "workload.h"

namespace gdpa::tool {

/// The scores of one sequence and head that a mask keeps.
class KeptScores {
 public:
  /// Evaluates the mask at every score.
  KeptScores(const Problem& problem, const Workload& workload, int64_t entry, int64_t head);

  int64_t length_q() const { return length_q_; }
  int64_t length_k() const { return length_k_; }
  bool at(int64_t i, int64_t j) const { return kept_[static_cast<std::size_t>(i * length_k_ + j)] != 0; }

 private:
  int64_t length_q_, length_k_;
  std::vector<unsigned char> kept_;
};

enum class Tile : unsigned char { empty, partial, full };

/// The tiles of the scores, from the size of the tiles of a plan. Scores beyond the sequence do not count.
class TileMap {
 public:
  TileMap(const KeptScores& scores, int64_t tile_queries, int64_t tile_keys);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t tile_queries() const { return tile_queries_; }
  int64_t tile_keys() const { return tile_keys_; }
  Tile at(int64_t row, int64_t column) const { return tiles_[static_cast<std::size_t>(row * columns_ + column)]; }
  int64_t count(Tile tile) const;

  /// The kept scores divided by the scores of the tiles that are not empty; 1 if all are empty.
  double used() const { return used_; }

  /// One line for each row of tiles: '#' full, '+' partial, '.' empty. Several tiles share a character if there are
  /// more than `most` rows or columns.
  std::vector<std::string> lines(int64_t most) const;

  /// "128 x 128 tiles: 15 full (#), 30 partial (+), 211 empty (.); 67 % of the computed scores are kept"
  std::string summary() const;

  Json to_json() const;

 private:
  int64_t tile_queries_, tile_keys_, rows_, columns_;
  std::vector<Tile> tiles_;
  double used_ = 1;
};

/// Writes a picture of the scores and tiles: dark blue for the scores of full tiles, light blue for kept scores of
/// partial tiles, orange for their masked scores, white for empty tiles, and lines between tiles. Throws UsageError if
/// the name does not end in .png, and MachineError if the file cannot be written.
void write_picture(const std::string& path, const KeptScores& scores, const TileMap& tiles);

}  // namespace gdpa::tool
