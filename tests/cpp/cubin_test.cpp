// The properties that gdpa reads from a cubin. The test writes the ELF files itself.
#include "jit/cubin.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace gdpa::jit {
namespace {

template <class Struct>
std::string bytes_of(const Struct& value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

struct Section {
  std::string name;
  std::string content;
  std::uint64_t size;  ///< of a section without content, such as shared memory
};

/// An ELF file with these sections and the table of their names.
std::string elf_of(std::vector<Section> sections) {
  std::string names(1, '\0');
  sections.push_back({".shstrtab", "", 0});
  std::vector<Elf64_Shdr> headers;
  for (const Section& section : sections) {
    Elf64_Shdr header{};
    header.sh_name = static_cast<Elf64_Word>(names.size());
    names += section.name + '\0';
    headers.push_back(header);
  }
  sections.back().content = names;
  std::string contents;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    headers[i].sh_type = sections[i].content.empty() ? SHT_NOBITS : SHT_PROGBITS;
    headers[i].sh_offset = sizeof(Elf64_Ehdr) + contents.size();
    headers[i].sh_size = sections[i].content.empty() ? sections[i].size : sections[i].content.size();
    contents += sections[i].content;
  }
  Elf64_Ehdr file{};
  std::memcpy(file.e_ident, ELFMAG, SELFMAG);
  file.e_shoff = sizeof(Elf64_Ehdr) + contents.size();
  file.e_shnum = static_cast<Elf64_Half>(sections.size());
  file.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  std::string image = bytes_of(file) + contents;
  for (const Elf64_Shdr& header : headers) image += bytes_of(header);
  return image;
}

/// An entry of .nv.info with the number of a function.
std::string of_function(unsigned char attribute, std::uint32_t function, std::int32_t number) {
  return std::string{4, static_cast<char>(attribute), 8, 0} + bytes_of(function) + bytes_of(number);
}

constexpr unsigned char frame = 0x11, registers = 0x2f, another = 0x12;

/// A kernel that calls functions. An entry of another format stands between the entries of the functions.
std::string kernel() {
  const std::string flag = {1, static_cast<char>(another), 0, 0};
  const std::string info = of_function(registers, 1, 24) + of_function(frame, 1, 16) + flag +
                           of_function(registers, 2, 168) + of_function(frame, 2, 48) + of_function(another, 2, 999) +
                           of_function(registers, 3, 40) + of_function(frame, 3, 0);
  return elf_of({{".nv.info", info, 0},
                 {".nv.info.kernel", of_function(registers, 2, 500), 0},
                 {".nv.shared.kernel", "", 4096},
                 {".nv.shared.function", "", 512},
                 {".nv.shared.reserved.0", "", 1024},
                 {".text.kernel", "code", 0}});
}

TEST(Cubin, RegistersAndLocalMemoryAreThoseOfTheFunctionWithTheMost) {
  const std::string image = kernel();
  EXPECT_EQ(Cubin(image).registers(), 168);
  EXPECT_EQ(Cubin(image).local_bytes(), 48);
}

TEST(Cubin, StaticSharedMemoryIsTheSumOfTheSectionsThatTheDriverDoesNotReserve) {
  EXPECT_EQ(Cubin(kernel()).static_shared_bytes(), 4096 + 512);
}

TEST(Cubin, AnImageWithoutInformationHasNoProperties) {
  for (const std::string& image : {std::string(), std::string("no ELF file"), elf_of({{".text.kernel", "code", 0}})}) {
    EXPECT_FALSE(Cubin(image).registers().has_value());
    EXPECT_FALSE(Cubin(image).local_bytes().has_value());
    EXPECT_FALSE(Cubin(image).constant("limit").has_value());
    EXPECT_EQ(Cubin(image).static_shared_bytes(), 0);
  }
}

/// The image is in a vector of exactly its size, so that AddressSanitizer reports a read beyond its end.
TEST(Cubin, NoPartOfADamagedImageIsReadOutsideOfIt) {
  const std::string whole = kernel();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const Cubin cubin(std::string_view(cut.data(), cut.size()));
    EXPECT_LE(cubin.registers().value_or(0), 168);
    EXPECT_FALSE(cubin.constant("limit").has_value());
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::vector<char> changed(whole.begin(), whole.end());
    changed[i] = static_cast<char>(0xff);
    const Cubin cubin(std::string_view(changed.data(), changed.size()));
    cubin.registers();
    cubin.static_shared_bytes();
    EXPECT_FALSE(cubin.constant("limit").has_value());
  }
}

}  // namespace
}  // namespace gdpa::jit
