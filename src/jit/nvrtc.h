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
  /// Opens the first of files() that can be opened. Throws Error (runtime) that lists where it looked.
  static Nvrtc open();

  /// The files named libnvrtc.so.13 or .12 that exist, in the order in which open() tries them; none is opened. The
  /// places are: the environment variable GDPA_NVRTC (a library, or the folder that holds it; nothing else is looked
  /// at where it is set), the library that the process has open already, the packages that torch brings, next to the
  /// package that this library belongs to and in the folders of the environment variable GDPA_SITE_PACKAGES (separated
  /// by colons), the dynamic loader's folders, and the toolkit ($CUDA_HOME, /usr/local/cuda).
  static std::vector<std::string> files();

  const std::string& path() const { return path_; }
  int major() const { return major_; }

  /// The version with its build number, as in "13.2.86": what the compiled code depends on.
  const std::string& version() const { return version_; }

  /// The options of every compilation for an architecture, except the `options` of compile().
  static std::vector<std::string> base_options(const std::string& architecture);

  /// Compiles for an architecture by its name ("sm_80", "sm_90a", "sm_100a"). Headers of kernels/ may be included.
  /// `options` are added to base_options(). Throws Error (runtime) with the log, the line at fault and the subject.
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
    int (*ptx_size)(Program, std::size_t*);
    int (*ptx)(Program, char*);
  };

  explicit Nvrtc(void* library);
  void check(int result, const char* doing) const;
  std::string build_version() const;

  std::string path_;
  int major_ = 0;
  std::string version_;
  Functions functions_{};
};

}  // namespace gdpa::jit
