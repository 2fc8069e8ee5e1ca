"""gdpa.Activation and the tracing of Python functions: the expression and torch compute the same values."""

from __future__ import annotations

import gc
import math
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gdpa
from gdpa import _trace

SCORES = torch.linspace(-6, 6, 241, dtype=torch.float64)


def evaluated(activation: gdpa.Activation | Callable[..., Tensor] | str, **keywords: dict[str, float]) -> Tensor:
    """Returns f over SCORES, from one key and a value of 1. The product of a query and the key is the score."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    query = SCORES[:, None, None]
    return gdpa.varlen_attention(query, one, one, None, None, activation=activation, scale=1.0, **keywords)[:, 0, 0]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda s: -(s + 1) * (2 - s) / (s * s + 3) - 1 / (4 + s**2),
    "reflected": lambda s: 2**s + 1 / (3 + abs(s)),
    "powers": lambda s: (s**2 + 1) ** 0.5 + (+s) ** 3,
    "constant": lambda s: torch.ones_like(s) + torch.zeros_like(s),
    "torch functions": lambda s: torch.sin(s) * torch.cos(s) + torch.erf(s) * torch.exp2(-s.abs()),
    "logarithms": lambda s: torch.log(s.square() + 1) + torch.log1p(torch.abs(s)) + torch.expm1(s / 3),
    "roots": lambda s: torch.sqrt(s * s + 1) + torch.rsqrt(s * s + 2),
    "methods": lambda s: s.mul(2).add(1).sub(s, alpha=3).div(4).tanh().neg().reciprocal().clamp(-5, 5),
    "where": lambda s: torch.where(s > 1, s, torch.where(s <= -1, -s, 0.0)),
    "a product with a comparison": lambda s: s * (s > 0) + (s < -1) * 0.5,
    "conditions": lambda s: torch.where((s > -1) & (s < 2) | (s >= 3), s, -1.0) + torch.where(~(s == 0), 1.0, 0.0),
    "clamps": lambda s: torch.clamp(s, min=-1) + s.clamp(max=2) + torch.clip(s, -0.5, 0.5) + s.clamp_min(0.0),
    "extremes": lambda s: torch.maximum(s, 2 * s) + torch.minimum(s, s * s) + torch.max(s, -s),
    "numpy's numbers": lambda s: torch.tensor(2.0).numpy().item() * s,
    "gelu": F.gelu,
    "gelu tanh": lambda s: F.gelu(s, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda s: F.leaky_relu(s, 0.2),
    "elu": lambda s: F.elu(s, alpha=0.7),
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
    "softplus with a threshold": lambda s: F.softplus(s, beta=2, threshold=1),
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "mish": F.mish,
    "a builtin": torch.sigmoid,
    "a module": torch.nn.GELU("tanh"),
    "modules": torch.nn.Sequential(torch.nn.Softplus(), torch.nn.Tanh()),
    "expit": torch.special.expit,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_a_traced_function_computes_what_torch_computes(function: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(evaluated(function), function(SCORES), rtol=1e-7, atol=1e-7)


def test_the_expression_reads_as_a_person_would_write_it() -> None:
    def function(s: Tensor) -> Tensor:
        return -(s + 1) * (s - (2 - s)) / (s**2 / -3) + torch.clamp(s, -1, 2) ** (-s)

    assert gdpa.Activation(function).text == "(-(s + 1)) * (s - (2 - s)) / (s^2 / (-3)) + clamp(s, -1, 2)^(-s)"


def test_arguments_after_the_score_are_parameters() -> None:
    def swish(s: Tensor, b: float, *, shift: float = 0.25) -> Tensor:
        return s * torch.sigmoid(b * s) + shift

    torch.testing.assert_close(evaluated(swish, params={"b": 1.5}), swish(SCORES, 1.5))
    torch.testing.assert_close(evaluated(swish, params={"b": 1.5, "shift": -1}), swish(SCORES, 1.5, shift=-1))
    with pytest.raises(ValueError, match=r"got a function of \(s, c\); pass params=\{'c': 2.0\}"):
        gdpa.Activation(lambda s, c: s + c)


REFUSED: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "a captured tensor": ("params=", lambda s: s * torch.ones(3)),
    "a captured tensor first": ("params=", lambda s: torch.ones(3) * s),
    "a captured parameter": ("params=", lambda s: F.relu(s) + torch.nn.Parameter(torch.ones(()))),
    "a tensor as argument": ("params=", lambda s: torch.maximum(s, torch.tensor(0.0))),
    "a tensor as result": ("params=", lambda s: torch.ones(3)),
    "control flow": ("torch.where", lambda s: s if s > 0 else 0 * s),
    "math": ("torch.where", lambda s: s * math.exp(s)),  # type: ignore[arg-type]
    "item": ("Tensor.item", lambda s: s * s.item()),
    "a shape": ("Tensor.shape", lambda s: s / s.shape[0]),
    "a reduction": ("torch.softmax", lambda s: torch.softmax(s, -1)),
    "a reduction by max": ("dimension", lambda s: torch.max(s, 0)),
    "a method": ("Tensor.cumsum", lambda s: s.cumsum(0)),
    "a change in place": ("inplace", lambda s: F.relu(s, inplace=True)),
    "a method in place": ("Tensor.relu_", lambda s: s.relu_()),
    "an index": ("[]", lambda s: s[0]),
    "bits": ("<<", lambda s: s << 2),  # type: ignore[operator]
    "a number as condition": ("comparison", lambda s: torch.where(s, s, 0)),  # type: ignore[call-overload]
    "two results": ("tuple", lambda s: (s, s)),
    "nan": ("nan", lambda s: s * float("nan")),
    "a complex number": ("complex", lambda s: s * 1j),
}


@pytest.mark.parametrize(("words", "function"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_said_is_refused_with_the_way_out(words: str, function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError) as caught:
        gdpa.Activation(function)
    assert str(caught.value).startswith("activation: expected ")
    assert words in str(caught.value)


def test_functions_of_one_line_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    trace = _trace._trace
    monkeypatch.setattr(_trace, "_cache", weakref.WeakKeyDictionary())
    monkeypatch.setattr(_trace, "_trace", lambda *arguments: traced.append(1) or trace(*arguments))
    factor = 2
    for _ in range(3):
        evaluated(lambda s: factor * F.silu(s))
    evaluated(torch.nn.LeakyReLU(0.3))
    evaluated(torch.nn.LeakyReLU(0.3))
    evaluated(torch.sigmoid)
    evaluated(torch.sigmoid)
    assert len(traced) == 3


GLOBAL = 2.0


class Settings:
    factor = 2.0


def test_a_change_of_what_a_function_has_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the function itself: a captured number, a global, an attribute, a list, another function, a default."""
    number, numbers, settings = 2.0, [2.0], Settings()

    def inner(s: Tensor) -> Tensor:
        return number * s

    def function(s: Tensor, default: float = 3.0) -> Tensor:
        return inner(s) + numbers[0] * s + settings.factor * s + GLOBAL * s + default * s

    slope, nested = torch.nn.LeakyReLU(0.1), torch.nn.Sequential(torch.nn.Tanh())

    def check() -> None:
        for one in (function, slope, nested, lambda s: number * s):
            torch.testing.assert_close(evaluated(one), one(SCORES))

    check()
    number = 5.0
    check()
    numbers[0] = 7.0
    check()
    settings.factor = 11.0
    check()
    monkeypatch.setitem(globals(), "GLOBAL", 13.0)
    check()
    function.__defaults__ = (17.0,)
    check()
    slope.negative_slope = 0.7
    check()
    nested.append(torch.nn.ReLU())
    check()


def test_a_change_behind_a_built_in_method_is_seen() -> None:
    settings = {"factor": 2.0}
    read = settings.get
    for factor in (2.0, 5.0):
        settings["factor"] = factor
        torch.testing.assert_close(evaluated(lambda s: read("factor") * s), factor * SCORES)


def test_train_and_eval_of_a_module_are_different_functions() -> None:
    class Gate(torch.nn.Module):
        def forward(self, s: Tensor) -> Tensor:
            return F.relu(s) if self.training else s

    gate = Gate()
    torch.testing.assert_close(evaluated(gate), F.relu(SCORES))
    torch.testing.assert_close(evaluated(gate.eval()), SCORES)


def test_a_prelu_has_its_gradient() -> None:
    prelu = torch.nn.PReLU(init=0.3).double()
    query, key, value = torch.randn(3, 2, 5, 4, dtype=torch.float64).unbind()
    output = gdpa.generalized_dot_product_attention(query, key, value, prelu, scale=1.0)
    expected = F.prelu(query @ key.mT, prelu.weight) @ value
    torch.testing.assert_close(output, expected)
    gradient = torch.randn_like(output)
    actual, wanted = (torch.autograd.grad(one, prelu.weight, gradient)[0] for one in (output, expected))
    torch.testing.assert_close(actual, wanted)


def test_a_function_that_is_gone_is_not_kept() -> None:
    def doubled(s: Tensor) -> Tensor:
        return s * 2

    evaluated(doubled)
    gone = weakref.ref(doubled)
    del doubled
    gc.collect()
    assert gone() is None


def test_a_long_chain_of_reuse_is_refused_rather_than_written_out() -> None:
    def grown(s: Tensor) -> Tensor:
        for _ in range(40):
            s = s * s
        return s

    with pytest.raises(ValueError, match="characters"):
        gdpa.Activation(grown)


def test_equal_functions_are_equal_activations() -> None:
    swish = gdpa.Activation("s*sigmoid( b*s )", {"b": 1.702})
    assert swish == gdpa.Activation(swish.text)
    assert len({swish, gdpa.Activation(swish), gdpa.Activation("silu")}) == 2
    assert pickle.loads(pickle.dumps(swish)) == swish
    assert str(swish) == swish.text


def test_the_derivative_is_an_expression_too() -> None:
    scores = SCORES.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((scores * torch.tanh(scores)).sum(), scores)
    torch.testing.assert_close(evaluated(gdpa.Activation("s * tanh(s)").derivative), wanted)


def test_parameters_join_those_of_the_text() -> None:
    joined = gdpa.Activation("a * s + b with a = 2", {"b": 0.5})
    torch.testing.assert_close(evaluated(joined), 2 * SCORES + 0.5)
