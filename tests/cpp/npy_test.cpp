// The reader of .npy files: orders, versions and types of NumPy's format, and its messages.
#include "npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "command.h"

namespace gdpa::tool {
namespace {

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// A file as numpy.save writes it, for a version.
std::string file(const std::string& header, const std::string& data, int version = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(version);
  text += '\0';
  const std::string padded = header + std::string(16, ' ') + "\n";
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) text += static_cast<char>(padded.size() >> (8 * i));
  return text + padded + data;
}

std::string header(const std::string& type, const std::string& shape, bool is_fortran = false) {
  return "{'descr': '" + type + "', 'fortran_order': " + (is_fortran ? "True" : "False") + ", 'shape': " + shape +
         ", }";
}

NpyArray read(const std::string& text) {
  std::istringstream stream(text);
  return read_npy(stream, "table.npy");
}

template <class Number>
std::vector<Number> numbers_of(const NpyArray& array) {
  std::vector<Number> numbers(array.data.size() / sizeof(Number));
  std::memcpy(numbers.data(), array.data.data(), array.data.size());
  return numbers;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Npy, NumbersOfEveryTypeAndVersion) {
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  for (int version = 1; version <= 3; ++version) {
    const NpyArray array = read(file(header("<f4", "(2, 3)"), bytes_of(numbers), version));
    EXPECT_EQ(array.dtype, DType::float32);
    EXPECT_EQ(array.sizes, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(numbers_of<float>(array), numbers);
  }
  const std::vector<int64_t> wide = {int64_t{1} << 60, -1};
  EXPECT_EQ(numbers_of<int64_t>(read(file(header("<i8", "(2,)"), bytes_of(wide)))), wide);
  EXPECT_EQ(read(file(header("<i4", "(1,)"), bytes_of<int32_t>({7}))).dtype, DType::int32);
  EXPECT_EQ(read(file(header("<f2", "(1,)"), bytes_of<uint16_t>({0x3c00}))).dtype, DType::float16);
  const NpyArray scalar = read(file(header("<f8", "()"), bytes_of<double>({2.5})));
  EXPECT_TRUE(scalar.sizes.empty());
  EXPECT_EQ(numbers_of<double>(scalar), std::vector<double>{2.5});
  EXPECT_TRUE(read(file(header("<f4", "(0, 3)"), "")).data.empty());
}

TEST(Npy, FortranOrderBecomesCOrder) {
  // a[i, j, k] = 100 i + 10 j + k with shape (2, 3, 2); the first index runs fastest in the file.
  std::vector<int32_t> stored, expected;
  for (int k = 0; k < 2; ++k)
    for (int j = 0; j < 3; ++j)
      for (int i = 0; i < 2; ++i) stored.push_back(100 * i + 10 * j + k);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 2; ++k) expected.push_back(100 * i + 10 * j + k);
  EXPECT_EQ(numbers_of<int32_t>(read(file(header("<i4", "(2, 3, 2)", true), bytes_of(stored)))), expected);
}

TEST(Npy, OtherFilesAreRefusedWithAReason) {
  const auto expect_error = [](const std::string& part, const std::string& text) {
    EXPECT_NE(error_of(text).find(part), std::string::npos) << error_of(text);
    EXPECT_EQ(error_of(text).rfind("table.npy: expected ", 0), 0U) << error_of(text);
  };
  expect_error("got another file", "1 2 3");
  expect_error("got another file", "");
  expect_error("got version 4", file(header("<f4", "(1,)"), "1234", 4));
  expect_error("ends too early", file(header("<f4", "(2,)"), "1234"));
  expect_error("ends too early", file(header("<f4", "(1099511627776,)"), "1234"));
  expect_error("fits into memory", file(header("<f4", "(1099511627776, 1099511627776)"), "1234"));
  expect_error("got '>f4'", file(header(">f4", "(1,)"), "1234"));
  expect_error("got '|b1'", file(header("|b1", "(1,)"), "1"));
  expect_error("plain numbers", file("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234"));
}

TEST(Npy, AMissingFileIsNamed) {
  EXPECT_THROW(
      {
        try {
          read_npy("/no/such/table.npy");
        } catch (const UsageError& error) {
          EXPECT_STREQ(error.what(), "/no/such/table.npy: expected a .npy file, got no such file");
          throw;
        }
      },
      UsageError);
}

}  // namespace
}  // namespace gdpa::tool
