// NVRTC, which is opened at run time. It compiles CUDA C++ to a cubin for one architecture. This interface has no
// cache.
#pragma once

#include <string>
#include <vector>

namespace gdpa::jit {

/// CUDA C++ to compile. `subject` is the name for messages (the text of the activation).
struct Source {
  std::string text;
  std::string subject;
};

/// A header that a source may include: #include "common/elementary.cuh".
struct Header {
  std::string name;
  std::string text;
};

/// Returns every file of kernels/, with its path relative to that folder, and the headers of src/ and include/ that
/// these files include. They are embedded in the library (src/jit/CMakeLists.txt).
const std::vector<Header>& embedded_headers();

struct Compiled {
  std::string cubin;
  std::string log;  ///< the log of NVRTC: warnings, and the report of ptxas if the options request it
};

/// A copy of libnvrtc. Several threads may share it. It stays loaded until the process ends.
class Nvrtc {
 public:
  /// Opens the first of files() that can be opened. Throws Error (runtime) with the searched places.
  static Nvrtc open();

  /// Returns the existing files named libnvrtc.so.13 or .12, in the order in which open() tries them, without opening
  /// them. If the environment variable GDPA_NVRTC (a library or its folder) is set, the function searches only there.
  /// Otherwise it searches these places: the libraries of the process, the NVIDIA packages of torch next to the package
  /// of this library and in the folders of GDPA_SITE_PACKAGES (separated by colons), the folders of the dynamic loader,
  /// and the toolkit ($CUDA_HOME, /usr/local/cuda).
  static std::vector<std::string> files();

  const std::string& path() const { return path_; }
  int major() const { return major_; }

  /// Returns the version with its build number, such as "13.2.86". The compiled code depends on it.
  const std::string& version() const { return version_; }

  /// Returns the options of every compilation for an architecture, without the `options` of compile().
  static std::vector<std::string> base_options(const std::string& architecture);

  /// Compiles for a named architecture ("sm_80", "sm_90a", "sm_100a"). The source may include headers of kernels/.
  /// `options` are added to base_options(). Throws Error (runtime) with the log, the faulty line and the subject.
  Compiled compile(const Source& source, const std::string& architecture,
                   const std::vector<std::string>& options = {}) const;

 private:
  class Program;

  explicit Nvrtc(void* library);

  /// Calls a function of the library.
  template <class Result = int, class... Arguments>
  Result call(const std::string& name, Arguments... arguments) const;
  std::string error(int result) const;
  void check(int result, const char* doing) const;
  std::string build_version() const;

  void* library_;
  std::string path_;
  int major_ = 0;
  std::string version_;
};

}  // namespace gdpa::jit
