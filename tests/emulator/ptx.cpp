// Reading PTX; see ptx.h.
#include "ptx.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

namespace gdpa::emulator {

Constant::Constant(std::uint64_t number) {
  of_8_bytes.fill(number);
  of_4_bytes.fill(static_cast<std::uint32_t>(number));
  of_2_bytes.fill(static_cast<std::uint16_t>(number));
}

namespace {

[[noreturn]] void fail(const std::string& what, std::string_view where) {
  throw std::runtime_error("PTX: " + what + ": " + std::string(where));
}

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < text.size();) {
    while (i < text.size() && std::isspace(static_cast<unsigned char>(text[i])) != 0) ++i;
    std::size_t end = i;
    while (end < text.size() && std::isspace(static_cast<unsigned char>(text[end])) == 0) ++end;
    if (end > i) result.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return result;
}

std::string without_comments(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else {
      result += text[i++];
    }
  }
  return result;
}

/// Bytes of a type: ".b32", "u32".
std::uint8_t bytes_of(std::string_view type) {
  if (type.ends_with("pred")) return 0;
  if (type.ends_with("128")) return 16;
  if (type.ends_with("64")) return 8;
  if (type.ends_with("32")) return 4;
  if (type.ends_with("16")) return 2;
  if (type.ends_with("8")) return 1;
  fail("expected a type", type);
}

/// 12, -12, 0x1f, 0f3f800000, 0d3ff0000000000000; the bits.
std::uint64_t number_of(std::string_view text) {
  const std::string digits(text);
  if (digits.starts_with("0f") || digits.starts_with("0d") || digits.starts_with("0F") || digits.starts_with("0D")) {
    return std::stoull(digits.substr(2), nullptr, 16);
  }
  return digits.front() == '-' ? static_cast<std::uint64_t>(std::stoll(digits, nullptr, 0))
                               : std::stoull(digits, nullptr, 0);
}

bool is_number(std::string_view text) {
  return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-');
}

/// Returns the parts between commas, including the parts in braces or brackets.
std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  std::string part;
  const auto end_part = [&] {
    if (const std::string_view whole = trimmed(part); !whole.empty()) parts.emplace_back(whole);
    part.clear();
  };
  for (const char c : text) {
    if (c == ',' || c == '|' || c == '{' || c == '}') {
      end_part();
    } else if (c != '[' && c != ']') {
      part += c;
    }
  }
  end_part();
  return parts;
}

/// Returns the number in brackets after a name, or 1.
std::size_t elements_of(std::string_view declared) {
  const std::size_t open = declared.find('[');
  if (open == std::string_view::npos) return 1;
  return declared[open + 1] == ']' ? 0 : static_cast<std::size_t>(number_of(declared.substr(open + 1)));
}

std::string name_of(std::string_view declared) {
  return std::string(declared.substr(0, declared.find_first_of("[<=")));
}

constexpr std::size_t registers_alignment = 64;

}  // namespace

/// Parses a module. The meaning of a name depends on its enclosing braces.
class Parser {
 public:
  Parser(Module& module, std::string text) : module_(module), text_(std::move(text)) { scopes_.emplace_back(); }

  void parse() {
    std::string statement;
    for (std::size_t i = 0; i < text_.size(); ++i) {
      const char c = text_[i];
      const std::string_view so_far = trimmed(statement);
      if (kernel_ == nullptr && so_far.find(".entry") != std::string_view::npos && c == '{') {
        begin_kernel(so_far);
        statement.clear();
      } else if (c == ';') {
        take(so_far);
        statement.clear();
      } else if (kernel_ != nullptr && so_far.empty() && c == '{') {
        scopes_.emplace_back();
      } else if (kernel_ != nullptr && so_far.empty() && c == '}') {
        end_scope();
      } else if (kernel_ != nullptr && c == ':' && !so_far.empty() && text_[i + 1] != ':' &&
                 std::all_of(so_far.begin(), so_far.end(), is_name_character)) {
        scopes_.back().labels[std::string(so_far)] = static_cast<std::uint32_t>(kernel_->instructions.size());
        statement.clear();
      } else if (c == '\n' && (so_far.starts_with(".version") || so_far.starts_with(".target") ||
                               so_far.starts_with(".address_size"))) {
        statement.clear();
      } else {
        statement += c;
      }
    }
  }

 private:
  struct Named {
    std::uint32_t place = 0;
    std::uint8_t bytes = 0;
  };
  struct Branch {
    std::size_t instruction;
    std::string label;
  };
  struct Scope {
    std::unordered_map<std::string, Named> names;
    std::unordered_map<std::string, std::uint32_t> labels;
    std::vector<Branch> branches;
  };

  struct Variable {
    Special space;  ///< shared, local, or variable
    std::size_t bytes;
    std::uint64_t address;  ///< or the offset of a shared or local variable
  };

  void begin_kernel(std::string_view header) {
    const std::size_t open = header.find('('), close = header.rfind(')');
    const std::string before(header.substr(0, open));
    const std::string name = words(before).back();
    kernel_ = &module_.kernels_[name];
    if (const std::size_t at = header.find(".maxntid"); at != std::string_view::npos) {
      kernel_->threads =
          static_cast<unsigned>(number_of(trimmed(header.substr(at + 8, header.find(',', at) - at - 8))));
    }
    scopes_.emplace_back();
    std::size_t offset = 0;
    for (const std::string& parameter : parts_between_commas(header.substr(open + 1, close - open - 1))) {
      const std::vector<std::string> parts = words(parameter);
      std::size_t alignment = 1, bytes = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        if (parts[i] == ".align") {
          alignment = static_cast<std::size_t>(number_of(parts[++i]));
        } else if (parts[i] != ".param") {
          bytes = bytes_of(parts[i]) * elements_of(parts.back());
          alignment = std::max<std::size_t>(alignment, bytes_of(parts[i]));
        }
      }
      offset = rounded(offset, alignment);
      kernel_->parameter_offsets.push_back(offset);
      kernel_->parameter_sizes.push_back(bytes);
      add_special(name_of(parts.back()), Special::parameters, 8, offset);
      offset += bytes;
    }
    kernel_->parameter_bytes = offset;
  }

  static std::vector<std::string> parts_between_commas(std::string_view text) {
    std::vector<std::string> parts;
    while (!trimmed(text).empty()) {
      const std::size_t comma = std::min(text.find(','), text.size());
      parts.emplace_back(trimmed(text.substr(0, comma)));
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return parts;
  }

  void end_scope() {
    Scope ended = std::move(scopes_.back());
    scopes_.pop_back();
    for (Branch& branch : ended.branches) {
      if (const auto label = ended.labels.find(branch.label); label != ended.labels.end()) {
        kernel_->instructions[branch.instruction].target = label->second;
      } else if (scopes_.size() > 1) {
        scopes_.back().branches.push_back(std::move(branch));
      } else {
        fail("no such label", branch.label);
      }
    }
    if (scopes_.size() == 1) kernel_ = nullptr;
  }

  std::uint32_t new_register(std::uint8_t bytes) {
    const std::size_t place = rounded(kernel_->register_bytes, registers_alignment);
    kernel_->register_bytes = place + (bytes == 0 ? 4 : bytes * lanes);
    return static_cast<std::uint32_t>(place);
  }

  Named add_special(const std::string& name, Special what, std::uint8_t bytes, std::uint64_t value) {
    const Named named{new_register(bytes), bytes};
    kernel_->specials.push_back({what, named.place, bytes, value});
    scopes_[kernel_ == nullptr ? 0 : 1].names[name] = named;
    return named;
  }

  void take(std::string_view statement) {
    if (statement.empty()) return;
    if (statement.starts_with(".reg")) return declare_registers(statement);
    const std::string first = words(statement).front();
    if (first == ".pragma" || first == ".loc" || first == ".file") return;
    if (statement.front() == '.') return declare_variable(statement);
    if (kernel_ == nullptr) fail("expected a kernel around", statement);
    add_instruction(statement);
  }

  void declare_registers(std::string_view statement) {
    const std::vector<std::string> parts = words(statement);
    const std::uint8_t bytes = bytes_of(parts[1]);
    const std::size_t names_at = statement.find(parts[1]) + parts[1].size();
    for (const std::string& declared : parts_between_commas(statement.substr(names_at))) {
      const std::size_t open = declared.find('<');
      if (open == std::string::npos) {
        scopes_.back().names[declared] = {new_register(bytes), bytes};
        continue;
      }
      const auto count = static_cast<int>(number_of(declared.substr(open + 1)));
      for (int i = 0; i < count; ++i) {
        scopes_.back().names[declared.substr(0, open) + std::to_string(i)] = {new_register(bytes), bytes};
      }
    }
  }

  /// .const .align 4 .u32 name = 256; of shared and local memory the place alone.
  void declare_variable(std::string_view statement) {
    const std::size_t equals = statement.find('=');
    const std::vector<std::string> parts = words(statement.substr(0, equals));
    std::size_t alignment = 1, element_bytes = 0;
    Variable variable{Special::variable, 0, 0};
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i] == ".align") {
        alignment = static_cast<std::size_t>(number_of(parts[++i]));
      } else if (parts[i] == ".shared") {
        variable.space = Special::shared;
      } else if (parts[i] == ".local") {
        variable.space = Special::local;
      } else if (parts[i] != ".const" && parts[i] != ".global" && parts[i] != ".visible" && parts[i] != ".extern" &&
                 parts[i] != ".weak") {
        element_bytes = bytes_of(parts[i]);
      }
    }
    variable.bytes = element_bytes * elements_of(parts.back());
    if (variable.space == Special::variable) {
      std::vector<std::byte>& memory = module_.variables_.emplace_back(variable.bytes + alignment);
      variable.address = rounded(reinterpret_cast<std::uintptr_t>(memory.data()), alignment);
      if (equals != std::string_view::npos) {
        initialise(variable, element_bytes, parts_of(statement.substr(equals + 1)), statement);
      }
    } else if (kernel_ != nullptr) {
      std::size_t& used = variable.space == Special::shared ? kernel_->static_shared_bytes : kernel_->local_bytes;
      variable.address = rounded(used, alignment);
      constexpr std::size_t most_alignment = 16;  // so that every thread's local memory is aligned
      used = rounded(variable.address + variable.bytes, most_alignment);
    }
    variables_[name_of(parts.back())] = variable;
  }

  static void initialise(const Variable& variable, std::size_t element_bytes, const std::vector<std::string>& values,
                         std::string_view statement) {
    if (values.size() * element_bytes > variable.bytes) fail("more values than the variable has", statement);
    auto* to = reinterpret_cast<std::byte*>(variable.address);
    for (const std::string& value : values) {
      const std::uint64_t number = number_of(value);
      std::memcpy(to, &number, element_bytes);
      to += element_bytes;
    }
  }

  void add_instruction(std::string_view statement) {
    Instruction instruction;
    instruction.text = std::string(statement);
    if (statement.front() == '@') {
      const std::size_t end = statement.find_first_of(" \t");
      instruction.guard = operand_of(statement.substr(1, end - 1));
      statement = trimmed(statement.substr(end));
    }
    const std::size_t end = std::min(statement.find_first_of(" \t\n"), statement.size());
    instruction.name = std::string(statement.substr(0, end));
    const std::vector<std::string> parts = parts_of(statement.substr(end));
    if (instruction.name == "bra" || instruction.name == "bra.uni") {
      scopes_.back().branches.push_back({kernel_->instructions.size(), parts.at(0)});
    } else {
      for (const std::string& part : parts) instruction.operands.push_back(operand_of(part));
    }
    look_up(instruction);
    kernel_->instructions.push_back(std::move(instruction));
  }

  Operand operand_of(std::string_view text) {
    Operand operand;
    if (text.front() == '!') {
      operand = operand_of(text.substr(1));
      operand.is_negated = true;
      return operand;
    }
    if (text == "_") return operand;
    if (is_number(text)) {
      operand.kind = Operand::Kind::constant;
      operand.constant = &module_.constants_.emplace_back(number_of(text));
      return operand;
    }
    std::size_t end = 0;
    while (end < text.size() && (is_name_character(text[end]) || text[end] == '.')) ++end;
    if (const std::string_view rest = trimmed(text.substr(end)); !rest.empty()) {
      if (rest.front() != '+' && rest.front() != '-') fail("expected an operand", text);
      operand.displacement = static_cast<std::int64_t>(number_of(trimmed(rest.substr(rest.front() == '+' ? 1 : 0))));
    }
    const Named named = look_up_name(std::string(text.substr(0, end)));
    operand.kind = Operand::Kind::in_registers;
    operand.place = named.place;
    operand.bytes = named.bytes;
    return operand;
  }

  Named look_up_name(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto named = scope->names.find(name); named != scope->names.end()) return named->second;
    }
    static const std::unordered_map<std::string, Special> specials = {
        {"%tid.x", Special::thread},  {"%ntid.x", Special::threads}, {"%ctaid.x", Special::cta},
        {"%nctaid.x", Special::ctas}, {"%laneid", Special::lane},    {"%clock", Special::clock}};
    if (const auto special = specials.find(name); special != specials.end())
      return add_special(name, special->second, 4, 0);
    if (const auto variable = variables_.find(name); variable != variables_.end()) {
      const bool is_dynamic = variable->second.space == Special::shared && variable->second.bytes == 0;
      return add_special(name, variable->second.space, 8,
                         is_dynamic ? SpecialRegister::dynamic_shared : variable->second.address);
    }
    fail("no such name", name);
  }

  Module& module_;
  const std::string text_;
  std::vector<Scope> scopes_;
  std::unordered_map<std::string, Variable> variables_;
  Kernel* kernel_ = nullptr;
};

Module::Module(const std::string& ptx) { Parser(*this, without_comments(ptx)).parse(); }

const Kernel& Module::kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) throw std::runtime_error("PTX: no kernel " + name);
  return found->second;
}

}  // namespace gdpa::emulator
