// Autograd functions of an extension: one that says it may be traced, one that does not, each of them in two kinds.

#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static int64_t calls = 0;

template <bool traceable, int factor>
struct Scaled : public torch::autograd::Function<Scaled<traceable, factor>> {
  static constexpr bool is_traceable = traceable;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y) {
    ctx->save_for_backward({x, y});
    return at::mul(at::mul(x, y), factor);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    ++calls;
    auto saved = ctx->get_saved_variables();
    if (!traceable && saved[0].numel() > 0 && saved[0].template const_data_ptr<float>() == nullptr)
      throw std::runtime_error("it reads memory");
    return {at::mul(at::mul(grads[0], saved[1]), factor), at::Tensor()};
  }
};

template <bool traceable, int factor>
at::Tensor scaled(const at::Tensor& x, const at::Tensor& y) {
  return Scaled<traceable, factor>::apply(x, y);
}

TORCH_LIBRARY(funcgrad_tests, m) {
  m.def("opaque2", scaled<false, 2>);
  m.def("opaque3", scaled<false, 3>);
  m.def("traceable2", scaled<true, 2>);
  m.def("traceable3", scaled<true, 3>);
  m.def("calls", []() { return calls; });
}
