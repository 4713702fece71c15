// The floating-point environment of the standard.
#pragma once

#include <cfenv>

namespace ozaki {

// While it lives the thread rounds to nearest and keeps subnormals, which XLA's threads flush.
class DefaultEnvironment {
 public:
  DefaultEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultEnvironment() { std::fesetenv(&saved_); }
  DefaultEnvironment(const DefaultEnvironment&) = delete;
  DefaultEnvironment& operator=(const DefaultEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace ozaki
