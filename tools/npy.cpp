// The header of the file is the literal of a Python dictionary, such as
//     {'descr': '<f4', 'fortran_order': False, 'shape': (4, 4096), }
#include "npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>

#include "command.h"

static_assert(std::endian::native == std::endian::little, "the numbers of a file are used as they are");

namespace gdpa::tool {
namespace {

const std::map<std::string, DType> types = {
    {"<f2", DType::float16}, {"<f4", DType::float32}, {"<f8", DType::float64},
    {"<i4", DType::int32},   {"<i8", DType::int64},
};

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& got) {
  throw UsageError(fmt::format("{}: expected {}, got {}", name, expected, got));
}

std::string read_bytes(std::istream& stream, std::size_t count, const std::string& name) {
  std::string bytes(count, '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(count));
  if (static_cast<std::size_t>(stream.gcount()) != count)
    refuse(name, "a whole .npy file", "a file that ends too early");
  return bytes;
}

/// Reads the magic string and the version, and returns the text of the header.
std::string read_header(std::istream& stream, const std::string& name) {
  const std::string magic = "\x93NUMPY";
  std::string begin(magic.size() + 2, '\0');
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (begin.compare(0, magic.size(), magic) != 0) refuse(name, "a .npy file (numpy.save)", "another file");
  const int major = static_cast<unsigned char>(begin[magic.size()]);
  if (major < 1 || major > 3) refuse(name, "version 1.0, 2.0 or 3.0 of .npy", fmt::format("version {}", major));
  const std::string length = read_bytes(stream, major == 1 ? 2 : 4, name);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i)
    bytes += std::size_t{static_cast<unsigned char>(length[i])} << (8 * i);
  constexpr std::size_t longest = 1 << 20;  // of any array of numbers
  if (bytes > longest) refuse(name, "a .npy file of numbers", fmt::format("a header of {} bytes", bytes));
  return read_bytes(stream, bytes, name);
}

/// Returns the value of a key of the header, as text.
std::string value_of(const std::string& header, const std::string& key, const std::string& value,
                     const std::string& name) {
  std::smatch match;
  if (!std::regex_search(header, match, std::regex(fmt::format("['\"]{}['\"]\\s*:\\s*{}", key, value)))) {
    refuse(name, fmt::format("a .npy file of plain numbers with '{}' in its header", key), header);
  }
  return match[1];
}

DType dtype_of(const std::string& header, const std::string& name) {
  const std::string type = value_of(header, "descr", "['\"]([^'\"]*)['\"]", name);
  const auto found = types.find(type);
  if (found != types.end()) return found->second;
  refuse(name, "little-endian numbers of type float16, float32, float64, int32 or int64",
         fmt::format("'{}'; convert the array with astype()", type));
}

std::vector<int64_t> sizes_of(const std::string& header, const std::string& name) {
  const std::string text = value_of(header, "shape", "\\(([0-9,\\s]*)\\)", name);
  const std::regex number("[0-9]+");
  std::vector<int64_t> sizes;
  int64_t elements = 1;
  for (auto word = std::sregex_iterator(text.begin(), text.end(), number); word != std::sregex_iterator(); ++word) {
    const std::string digits = word->str();
    constexpr int64_t most_elements = int64_t{1} << 40;
    const int64_t size = digits.size() > 13 ? most_elements + 1 : std::stoll(digits);
    if (size > 0 && elements > most_elements / size)
      refuse(name, "an array that fits into memory", fmt::format("shape ({})", text));
    sizes.push_back(size);
    elements *= size;
  }
  return sizes;
}

/// Converts Fortran order, in which the first index runs fastest, to C order.
std::vector<std::byte> in_c_order(const std::vector<std::byte>& data, const std::vector<int64_t>& sizes,
                                  std::size_t element) {
  std::vector<std::byte> result(data.size());
  std::vector<std::size_t> index(sizes.size());
  for (std::size_t to = 0; to < data.size(); to += element) {
    std::size_t from = 0;
    for (std::size_t axis = sizes.size(); axis-- > 0;)
      from = from * static_cast<std::size_t>(sizes[axis]) + index[axis];
    std::memcpy(result.data() + to, data.data() + from * element, element);
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      if (++index[axis] < static_cast<std::size_t>(sizes[axis])) break;
      index[axis] = 0;
    }
  }
  return result;
}

}  // namespace

NpyArray read_npy(std::istream& stream, const std::string& name) {
  const std::string header = read_header(stream, name);
  NpyArray array{dtype_of(header, name), sizes_of(header, name), {}};
  const bool is_fortran = value_of(header, "fortran_order", "(True|False)", name) == "True";
  const auto element = static_cast<std::size_t>(size_in_bytes(array.dtype));
  std::size_t bytes = element;
  for (const int64_t size : array.sizes) bytes *= static_cast<std::size_t>(size);
  // In pieces, so that a header with a wrong shape allocates no more than the file has.
  constexpr std::size_t piece = std::size_t{1} << 24;
  while (array.data.size() < bytes) {
    const std::string read = read_bytes(stream, std::min(piece, bytes - array.data.size()), name);
    const auto* const begin = reinterpret_cast<const std::byte*>(read.data());
    array.data.insert(array.data.end(), begin, begin + read.size());
  }
  if (is_fortran) array.data = in_c_order(array.data, array.sizes, element);
  return array;
}

NpyArray read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, "a .npy file", "no such file");
  return read_npy(file, path);
}

}  // namespace gdpa::tool
