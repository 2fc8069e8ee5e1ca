// See image.h. The file has this order: the header, the section headers, the names, the symbols, the constants, the
// PTX.
#include "image.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <regex>
#include <stdexcept>
#include <vector>

namespace gdpa::emulator {
namespace {

enum Section : std::uint16_t { none, names, symbols, constants, shared, sections };

template <class Struct>
void append(std::string& bytes, const Struct& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A table of names, in which an offset identifies a name.
class Names {
 public:
  Elf64_Word add(const std::string& name) {
    const std::size_t offset = bytes_.size();
    bytes_ += name + '\0';
    return static_cast<Elf64_Word>(offset);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_ = std::string(1, '\0');
};

/// Returns the bytes of all arrays in static shared memory: .shared .align 16 .b8 name[64].
std::size_t static_shared_bytes(const std::string& ptx) {
  static const std::regex declared(R"(\.shared \.align \d+ \.b8 [\w$]+\[(\d+)\])");
  std::size_t bytes = 0;
  for (std::sregex_iterator found(ptx.begin(), ptx.end(), declared), end; found != end; ++found) {
    bytes += std::stoull((*found)[1]);
  }
  return bytes;
}

}  // namespace

std::string image_of(const std::string& ptx) {
  Names text;
  std::string symbol_table(sizeof(Elf64_Sym), '\0'), values;
  static const std::regex constant(R"(\.const \.align 4 \.u32 (\w+)(?: = (\d+))?;)");
  for (std::sregex_iterator found(ptx.begin(), ptx.end(), constant), end; found != end; ++found) {
    append(symbol_table, Elf64_Sym{.st_name = text.add((*found)[1]),
                                   .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                                   .st_other = 0,
                                   .st_shndx = constants,
                                   .st_value = values.size(),
                                   .st_size = 4});
    append(values, (*found)[2].matched ? static_cast<std::uint32_t>(std::stoul((*found)[2])) : 0u);
  }

  std::vector<Elf64_Shdr> headers(sections, Elf64_Shdr{});
  const auto describe = [&](Section section, const char* name, Elf64_Word type, std::size_t bytes) {
    headers[section].sh_name = text.add(name);
    headers[section].sh_type = type;
    headers[section].sh_size = bytes;
  };
  describe(symbols, ".symtab", SHT_SYMTAB, symbol_table.size());
  headers[symbols].sh_link = names;
  describe(constants, ".nv.constant3", SHT_PROGBITS, values.size());
  describe(shared, ".nv.shared.gdpa_kernel", SHT_NOBITS, static_shared_bytes(ptx));
  describe(names, ".strtab", SHT_STRTAB, 0);
  headers[names].sh_size = text.bytes().size();

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = sections;
  header.e_shstrndx = names;
  std::uint64_t at = sizeof header + sections * sizeof(Elf64_Shdr);
  for (const Section section : {names, symbols, constants}) {
    headers[section].sh_offset = at;
    at += headers[section].sh_size;
  }

  std::string image;
  append(image, header);
  for (const Elf64_Shdr& section : headers) append(image, section);
  return image + text.bytes() + symbol_table + values + ptx;
}

const char* ptx_of(const void* image) {
  const auto* const bytes = static_cast<const char*>(image);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof header);
  if (header.e_phnum != 0 || header.e_shnum != sections) {
    throw std::runtime_error(
        "expected an image with PTX, got a cubin; set GDPA_NVRTC to the emulator's libnvrtc.so.13, and GDPA_CACHE_DIR "
        "to a folder that no GPU has used");
  }
  Elf64_Shdr last;
  std::memcpy(&last, bytes + header.e_shoff + sizeof last * constants, sizeof last);
  return bytes + last.sh_offset + last.sh_size;
}

}  // namespace gdpa::emulator
