// A library that is loaded before libgdpa (LD_PRELOAD) and puts a fault into gdpa::forward: calls of the process with
// bfloat16 operands count, and the call number FAULT_CALL has the fault FAULT. The tests of `gdpa verify` use it.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gdpa/attention.h"
#include "gdpa/error.h"

namespace {

using Forward = void (*)(const gdpa::Attention&, const gdpa::MutableTensorView&);

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The forward of libgdpa: the next definition of the symbol of the forward below.
Forward next_definition() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<const void*>(static_cast<Forward>(&gdpa::forward)), &info);
  return reinterpret_cast<Forward>(::dlsym(RTLD_NEXT, info.dli_sname));
}

/// Whether this call is the one with the fault.
bool is_next(const gdpa::Attention& attention) {
  static int calls = 0;
  return attention.query.dtype == gdpa::DType::bfloat16 && ++calls == std::atoi(variable("FAULT_CALL").c_str());
}

/// Writes a number of about 10,000 in bfloat16.
void overwrite(const void* element) { *static_cast<std::uint16_t*>(const_cast<void*>(element)) = 0x461c; }

}  // namespace

namespace gdpa {

__attribute__((visibility("default"))) void forward(const Attention& attention, const MutableTensorView& output) {
  static const auto real = next_definition();
  const std::string fault = is_next(attention) ? variable("FAULT") : "";
  if (fault == "crash") {
    std::fputs("a fault of the test\n", stderr);
    std::abort();
  }
  while (fault == "hang") ::pause();
  if (fault == "error") throw Error(ErrorKind::runtime, "an error of the test");
  real(attention, output);
  if (fault == "wrong") overwrite(output.data);
  if (fault == "changed input") overwrite(attention.key.data);
}

}  // namespace gdpa
