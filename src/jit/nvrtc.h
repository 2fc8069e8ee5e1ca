// NVRTC, opened at run time where it is found: CUDA C++ in, a cubin for one architecture out. There is no cache here.
#pragma once

#include <string>
#include <vector>

namespace gdpa::jit {

/// CUDA C++ to compile. `subject` is what the user knows it by (the activation's text), for messages.
struct Source {
  std::string text;
  std::string subject;
};

struct Compiled {
  std::vector<char> cubin;
  std::string log;  ///< what NVRTC said: warnings, and what ptxas reports where options ask for it
};

/// A copy of libnvrtc. Safe to share between threads; it stays loaded until the process ends.
class Nvrtc {
 public:
  /// The first libnvrtc.so.13 or .12 that can be opened, of: the environment variable GDPA_NVRTC (a library, or the
  /// folder that holds it; nothing else is tried where it is set), the one already in the process, the packages that
  /// torch brings, beside the package that this library belongs to and in the folders of the environment variable
  /// GDPA_SITE_PACKAGES (separated by colons), the loader's path, and the toolkit ($CUDA_HOME, /usr/local/cuda).
  /// Throws Error (runtime) that lists where it looked.
  static Nvrtc open();

  const std::string& path() const { return path_; }
  int major() const { return major_; }
  int minor() const { return minor_; }

  /// Compiles for an architecture by its name ("sm_80", "sm_90a", "sm_100a"). Headers of kernels/ may be included.
  /// `options` are added to the command line. Throws Error (runtime) with the log, the line at fault and the subject.
  Compiled compile(const Source& source, const std::string& architecture,
                   const std::vector<std::string>& options = {}) const;

 private:
  using Program = void*;
  struct Functions {
    int (*version)(int*, int*);
    const char* (*error_string)(int);
    int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
    int (*destroy)(Program*);
    int (*compile)(Program, int, const char* const*);
    int (*cubin_size)(Program, std::size_t*);
    int (*cubin)(Program, char*);
    int (*log_size)(Program, std::size_t*);
    int (*log)(Program, char*);
  };

  explicit Nvrtc(void* library);
  void check(int result, const char* doing) const;

  std::string path_;
  int major_ = 0;
  int minor_ = 0;
  Functions functions_{};
};

}  // namespace gdpa::jit
