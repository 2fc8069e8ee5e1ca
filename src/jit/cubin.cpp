// See cubin.h. No bytes of the image cause a read outside the image, because the image may come from a damaged file.
#include "jit/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gdpa::jit {
namespace {

/// Attributes of .nv.info with two words: the symbol of the function, and a number.
enum class Attribute : unsigned char { frame_bytes = 0x11, registers = 0x2f };

/// Returns the bytes [offset, offset + size) of a text, or nothing if the text is shorter.
std::string_view part_of(std::string_view text, std::uint64_t offset, std::uint64_t size) {
  if (offset > text.size() || size > text.size() - offset) return {};
  return text.substr(offset, size);
}

template <class Struct>
std::optional<Struct> read(std::string_view text, std::uint64_t offset) {
  const std::string_view bytes = part_of(text, offset, sizeof(Struct));
  if (bytes.empty()) return std::nullopt;
  Struct result;
  std::memcpy(&result, bytes.data(), sizeof result);
  return result;
}

/// Returns a name in a table of names, up to its terminating zero.
std::string_view name_at(std::string_view names, std::uint64_t offset) {
  if (offset >= names.size()) return {};
  const std::string_view rest = names.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

class Sections {
 public:
  explicit Sections(std::string_view image) : image_(image) {
    const auto header = read<Elf64_Ehdr>(image, 0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return;
    for (std::uint64_t i = 0; i < header->e_shnum; ++i) {
      const auto section = read<Elf64_Shdr>(image, header->e_shoff + i * sizeof(Elf64_Shdr));
      if (!section) return;
      sections_.push_back(*section);
    }
    if (header->e_shstrndx < sections_.size()) names_ = bytes_of(sections_[header->e_shstrndx]);
  }

  const std::vector<Elf64_Shdr>& all() const { return sections_; }
  std::string_view name_of(const Elf64_Shdr& section) const { return name_at(names_, section.sh_name); }
  std::string_view bytes_of(const Elf64_Shdr& section) const {
    return section.sh_type == SHT_NOBITS ? std::string_view() : part_of(image_, section.sh_offset, section.sh_size);
  }

 private:
  std::string_view image_;
  std::vector<Elf64_Shdr> sections_;
  std::string_view names_;
};

/// Returns the largest number of an attribute. It belongs to the kernel, because listed functions that the kernel calls
/// have smaller numbers. .nv.info is a list of (format, attribute, size, value).
std::optional<int> attribute_of(std::string_view image, Attribute wanted) {
  constexpr unsigned char has_sized_value = 4;
  struct Entry {
    unsigned char format;
    Attribute attribute;
    std::uint16_t size;  ///< the size of the following value, or the value itself, depending on the format
  };
  struct Value {
    std::uint32_t symbol;
    std::int32_t number;
  };
  std::optional<int> largest;
  const Sections sections(image);
  for (const Elf64_Shdr& section : sections.all()) {
    if (sections.name_of(section) != ".nv.info") continue;
    const std::string_view list = sections.bytes_of(section);
    for (std::uint64_t at = 0; at < list.size();) {
      const auto entry = read<Entry>(list, at);
      if (!entry) break;
      at += sizeof(Entry);
      if (entry->format != has_sized_value) continue;
      if (entry->attribute == wanted) {
        if (const auto value = read<Value>(list, at)) largest = std::max(largest.value_or(0), value->number);
      }
      at += entry->size;
    }
  }
  return largest;
}

}  // namespace

std::optional<int> Cubin::constant(std::string_view name) const {
  const Sections sections(image_);
  for (const Elf64_Shdr& table : sections.all()) {
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.all().size()) continue;
    const std::string_view names = sections.bytes_of(sections.all()[table.sh_link]);
    const std::string_view symbols = sections.bytes_of(table);
    for (std::uint64_t at = 0; at < symbols.size(); at += sizeof(Elf64_Sym)) {
      const auto symbol = read<Elf64_Sym>(symbols, at);
      if (!symbol) break;
      if (symbol->st_shndx >= sections.all().size() || name_at(names, symbol->st_name) != name) continue;
      const Elf64_Shdr& home = sections.all()[symbol->st_shndx];
      if (home.sh_type == SHT_NOBITS) return 0;
      return read<int>(sections.bytes_of(home), symbol->st_value);
    }
  }
  return std::nullopt;
}

std::optional<int> Cubin::registers() const { return attribute_of(image_, Attribute::registers); }

std::optional<int> Cubin::local_bytes() const { return attribute_of(image_, Attribute::frame_bytes); }

int Cubin::static_shared_bytes() const {
  constexpr std::string_view prefix = ".nv.shared.", reserved = ".nv.shared.reserved";
  const Sections sections(image_);
  std::uint64_t bytes = 0;
  for (const Elf64_Shdr& section : sections.all()) {
    const std::string_view name = sections.name_of(section);
    if (name.starts_with(prefix) && !name.starts_with(reserved)) bytes += section.sh_size;
  }
  return static_cast<int>(bytes);
}

}  // namespace gdpa::jit
