// The table of named activations.
#include "gdpa/activation.h"

namespace gdpa {

// guard(x, low, high) bounds x at a score beyond which the other factor is 0 to the last bit of fp64, because infinity
// times 0 is NaN. It adds no gate to the derivative, because the value is constant beyond the bounds.
const std::vector<NamedActivation>& named_activations() {
  static const std::vector<NamedActivation> table = {
      {"identity", "s", "linear attention without a feature map"},
      {"relu", "relu(s)", "Nair and Hinton, 2010"},
      {"relu2", "relu(s)^2", "squared ReLU: So et al., Primer, 2021"},
      {"leaky_relu", "where(s > 0, s, 0.01 * s)", "Maas et al., 2013; the slope is PyTorch's default"},
      {"gelu", "guard(s, -40, inf) * (0.5 + 0.5 * erf(s / sqrt(2)))",
       "Hendrycks and Gimpel, 2016: s times the normal distribution function"},
      {"gelu_tanh",
       "guard(s, -22, inf) * sigmoid(guard(s, -22, 22) * (sqrt(8 / pi) + 0.044715 * sqrt(8 / pi) * guard(s, -22, "
       "22)^2))",
       "Hendrycks and Gimpel, 2016: s / 2 * (1 + tanh(u)) = s * sigmoid(2 u), u = sqrt(2 / pi) * (s + 0.044715 s^3)"},
      {"fast_gelu", "gelu_tanh", "the name of gelu_tanh in Meta's kernels"},
      {"silu", "guard(s, -800, inf) * sigmoid(s)", "Elfwing et al., 2017; swish of Ramachandran et al., 2017"},
      {"fast_silu", "silu", "the name of silu in Meta's kernels"},
      {"hardswish", "guard(s, -3, inf) * (clamp(s + 3, 0, 6) / 6)", "Howard et al., MobileNetV3, 2019"},
      {"sigmoid", "sigmoid(s)", "the logistic function"},
      {"tanh", "tanh(s)", "the hyperbolic tangent"},
      {"softplus", "softplus(s)", "Dugas et al., 2001: log(1 + exp(s))"},
  };
  return table;
}

}  // namespace gdpa
