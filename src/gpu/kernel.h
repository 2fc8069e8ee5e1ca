// Kernel: one template instance of the device code. Each kernel of kernels/ has a host file in src/gpu/kernels with its
// specification: a struct of everything that its generated source depends on, apart from the expressions of a call.
#pragma once

#include <compare>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "expression/function.h"

namespace gdpa::gpu {

/// The names in a generated source: the kernel, and the constants for its launch.
struct SourceNames {
  static constexpr const char* kernel = "gdpa_kernel";
  static constexpr const char* threads = "gdpa_threads";            ///< int: of a CTA
  static constexpr const char* shared_bytes = "gdpa_shared_bytes";  ///< int: dynamic shared memory of a CTA
};

/// The expressions of a call: f, and the condition of the mask if the mask is no window.
struct Expressions {
  const activation::Function& function;
  const activation::Function* mask;

  // Implicit: most calls have a function only.
  Expressions(const activation::Function& function_, const activation::Function* mask_ = nullptr)  // NOLINT
      : function(function_), mask(mask_) {}
};

/// A kernel in the device code: gdpa::FAMILY::NAME<Config>(arguments) of kernels/FAMILY/HEADER.cuh.
struct KernelNames {
  std::string_view family;
  std::string_view name;
  std::string_view header;
  std::string_view arguments;          ///< the struct of its arguments, in the same namespace
  std::string_view common = "common";  ///< the member of type CommonArguments; empty: the arguments themselves
};

/// The parts of a generated source that differ between kernels.
struct SourceParts {
  std::string macros = {};     ///< in front of the header
  std::string functions = {};  ///< f, and everything else that is printed from an expression
  std::string config = "struct Config {\n};\n";
  std::string begin = {};  ///< the first statements of the kernel
  int ctas = 1;            ///< CTAs that have to fit on one multiprocessor
};

/// The specification of a kernel of which all calls use one instance.
struct NoConfig {
  static constexpr bool reads_function = false, reads_mask = false;
  SourceParts source(const Expressions& /*expressions*/) const { return {}; }
};

/// What every specification has. It may also have properties(), the rest of its description. `reads_function` and
/// `reads_mask`: the source contains the expression, so that two calls with different expressions have different
/// kernels.
template <class Spec>
concept Specification = requires(const Spec& spec, const Expressions& expressions) {
  typename Spec::Arguments;
  { Spec::names } -> std::convertible_to<KernelNames>;
  { Spec::reads_function } -> std::convertible_to<bool>;
  { Spec::reads_mask } -> std::convertible_to<bool>;
  { spec.source(expressions) } -> std::same_as<SourceParts>;
  requires std::is_empty_v<Spec> || requires {
    { spec <=> spec } -> std::same_as<std::strong_ordering>;  // NOLINT(misc-redundant-expression)
  };
};

class Kernel {
 public:
  template <Specification Spec>
  explicit Kernel(Spec spec) : self_(std::make_shared<const Model<Spec>>(std::move(spec))) {}

  const KernelNames& names() const { return self_->names; }
  bool reads_function() const { return self_->reads_function; }
  bool reads_mask() const { return self_->reads_mask; }

  /// A description of the instance: "hopper: forward BFloat16 d=128 ...", or the name of a kernel without properties.
  std::string description() const;

  /// The generated source. It contains the expressions that the kernel reads.
  std::string source(const Expressions& expressions) const;

  /// The specification, or null if this is an instance of another kernel.
  template <Specification Spec>
  const Spec* as() const {
    return self_->type == &Model<Spec>::key ? &static_cast<const Model<Spec>&>(*self_).spec : nullptr;
  }

  /// The kernel ends at once unless sequences of keys overlap (`overlap`), or unless they do not (see
  /// CommonArguments::keys_overlap).
  void run_only_if_keys_overlap(bool overlap) { wanted_overlap_ = overlap; }
  std::optional<bool> wanted_overlap() const { return wanted_overlap_; }

  /// An order of all instances. Equal instances have equal sources for equal expressions.
  std::strong_ordering operator<=>(const Kernel& other) const;
  bool operator==(const Kernel& other) const { return (*this <=> other) == std::strong_ordering::equal; }

 private:
  struct Instance {
    const void* type;  ///< of the specification
    KernelNames names;
    bool reads_function, reads_mask;

    Instance(const void* type_, const KernelNames& names_, bool reads_function_, bool reads_mask_)
        : type(type_), names(names_), reads_function(reads_function_), reads_mask(reads_mask_) {}
    virtual ~Instance() = default;
    virtual std::string properties() const = 0;
    virtual SourceParts source(const Expressions& expressions) const = 0;
    virtual std::strong_ordering compare(const Instance& other) const = 0;  ///< `other` has the same type
  };

  template <class Spec>
  struct Model final : Instance {
    static constexpr char key = 0;

    explicit Model(Spec spec_)
        : Instance(&key, Spec::names, Spec::reads_function, Spec::reads_mask), spec(std::move(spec_)) {}
    std::string properties() const override {
      if constexpr (requires { spec.properties(); }) {
        return spec.properties();
      } else {
        return {};
      }
    }
    SourceParts source(const Expressions& expressions) const override { return spec.source(expressions); }
    std::strong_ordering compare(const Instance& other) const override {
      if constexpr (std::is_empty_v<Spec>) {
        return std::strong_ordering::equal;
      } else {
        return spec <=> static_cast<const Model&>(other).spec;
      }
    }

    Spec spec;
  };

  std::shared_ptr<const Instance> self_;
  std::optional<bool> wanted_overlap_;
};

}  // namespace gdpa::gpu
