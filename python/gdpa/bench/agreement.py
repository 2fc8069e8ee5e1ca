"""The agreement of two systems that compute the same function, which is checked before their times are taken."""

from __future__ import annotations

from torch import Tensor

# The largest relative difference in the 2-norm. It allows roundings of the type.
AGREEMENT = {"bfloat16": 0.02, "float16": 0.005, "float32": 1e-4, "float64": 1e-9}


class Disagreement(Exception):
    """Two systems gave different results, so their times cannot be compared."""


def worst_difference(results: dict[str, Tensor], reference: dict[str, Tensor]) -> tuple[float, str]:
    """Returns the largest relative difference of a tensor in the 2-norm, and the name of this tensor."""

    def difference(name: str) -> float:
        exact = reference[name].double()
        return float((results[name].double() - exact).norm() / exact.norm())

    return max((difference(name), name) for name in reference)


def checked_difference(
    shape: str, system: str, results: dict[str, Tensor], reference: dict[str, Tensor], dtype: str
) -> float:
    """Returns the largest relative difference of the results from the reference, which are gdpa's results.

    Raises Disagreement if the difference exceeds the bound of the type.
    """
    bound = AGREEMENT[dtype]
    difference, where = worst_difference(results, reference)
    if not difference <= bound:
        raise Disagreement(
            f"{shape}: expected {system} to be within {bound:g} of gdpa, got {difference:.2g} in the {where}; no time "
            "was taken"
        )
    return difference
