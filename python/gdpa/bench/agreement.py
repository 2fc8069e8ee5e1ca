"""The agreement of two systems that compute the same function, which is checked before their times are taken."""

from __future__ import annotations

import math
from operator import itemgetter

from torch import Tensor

# The largest relative difference in the 2-norm. It allows roundings of the type.
AGREEMENT = {"bfloat16": 0.02, "float16": 0.005, "float32": 1e-4, "float64": 1e-9}


class Disagreement(Exception):
    """Two systems gave different results, so their times cannot be compared."""


def worst_difference(results: dict[str, Tensor], reference: dict[str, Tensor]) -> tuple[float, str]:
    """Returns the largest relative difference of a tensor in the 2-norm, and the name of this tensor.

    The difference of a number that is not finite is infinite: max() would pass over NaN.
    """

    def difference(name: str) -> float:
        exact = reference[name].double()
        error = float((results[name].double() - exact).norm())
        if error == 0:
            return 0.0
        size = float(exact.norm())
        return error / size if math.isfinite(error) and size > 0 else math.inf

    return max(((difference(name), name) for name in reference), key=itemgetter(0))


def checked_difference(
    shape: str, system: str, results: dict[str, Tensor], reference: dict[str, Tensor], bound: float
) -> float:
    """Returns the largest relative difference of the results from the reference, which are gdpa's results.

    Raises Disagreement if the difference exceeds the bound.
    """
    difference, where = worst_difference(results, reference)
    if not difference <= bound:
        raise Disagreement(
            f"{shape}: expected {system} to be within {bound:g} of gdpa, got {difference:.2g} in the {where}; no time "
            "was taken"
        )
    return difference
