"""Fits the polynomials of the CPU backend's exp, log, sin, cos and erf, and prints src/cpu/simd_coefficients.h.

Each polynomial interpolates its function at Chebyshev nodes, in 60 digits, which comes within a small factor of the
minimax error; the number of coefficients is chosen so that this error lies below the rounding of the type.

    python tools/fit_functions.py > src/cpu/simd_coefficients.h
"""

from collections.abc import Callable
from dataclasses import dataclass

from mpmath import chebyfit, cos, erf, erfc, exp, log, mp, mpf, pi, sin, sqrt, taylor

mp.dps = 60


@dataclass(frozen=True)
class Fit:
    """One function on one interval, with the number of coefficients for fp32 and fp64."""

    name: str
    formula: str
    function: Callable[[mpf], mpf]
    intervals: tuple[tuple[mpf, mpf], tuple[mpf, mpf]]
    counts: tuple[int, int]


def without_singularity(function: Callable[[mpf], mpf], near: float = 1e-6) -> Callable[[mpf], mpf]:
    """`function` with the removable singularity at 0 filled by its Taylor series through a circle around it."""
    series = taylor(function, mpf("0.01"), 18)

    def filled(x: mpf) -> mpf:
        if abs(x) > near:
            return function(x)
        return mp.polyval(series[::-1], x - mpf("0.01"))

    return filled


def log_remainder(z: mpf) -> mpf:
    """R with log((1 + s) / (1 - s)) = 2 s + s z R(z), z = s^2."""
    s = sqrt(z)
    return (log((1 + s) / (1 - s)) / s - 2) / z


def both(low: mpf, high: mpf) -> tuple[tuple[mpf, mpf], tuple[mpf, mpf]]:
    return ((mpf(low), mpf(high)), (mpf(low), mpf(high)))


def erfc_logarithm(t: mpf) -> mpf:
    """log2 erfc(1 + t): in powers of t the polynomial rounds least where erfc, which weighs its error, is largest."""
    return log(erfc(1 + t)) / log(2)


HALF_LOG2 = log(2) / 2 * mpf("1.01")
QUARTER_PI = pi / 4 * mpf("1.01")
FITS = [
    Fit(
        "exponential",
        "exp(r) = 1 + r + r^2 P(r), |r| <= log(2) / 2",
        without_singularity(lambda r: (exp(r) - 1 - r) / r**2),
        both(-HALF_LOG2, HALF_LOG2),
        (5, 11),
    ),
    Fit(
        "power_of_two",
        "2^r = 1 + r P(r), |r| <= 1/2",
        without_singularity(lambda r: (2**r - 1) / r),
        both(mpf("-0.501"), mpf("0.501")),
        (6, 12),
    ),
    Fit(
        "logarithm",
        "log((1 + s) / (1 - s)) = 2 s + s z P(z), z = s^2, from sqrt(1/2) to sqrt(2)",
        without_singularity(log_remainder),
        both(0, mpf("0.0296")),
        (4, 8),
    ),
    Fit(
        "sine",
        "sin(r) = r + r z P(z), z = r^2, |r| <= pi / 4",
        without_singularity(lambda z: (sin(sqrt(z)) / sqrt(z) - 1) / z),
        both(0, QUARTER_PI**2),
        (4, 7),
    ),
    Fit(
        "cosine",
        "cos(r) = 1 - z / 2 + z^2 P(z), z = r^2, |r| <= pi / 4",
        without_singularity(lambda z: (cos(sqrt(z)) - 1 + z / 2) / z**2),
        both(0, QUARTER_PI**2),
        (3, 7),
    ),
    Fit(
        "erf_near_zero",
        "erf(x) = x + x P(x^2), |x| <= 1",
        without_singularity(lambda z: erf(sqrt(z)) / sqrt(z) - 1),
        both(0, 1),
        (6, 13),
    ),
]
ERFC_LOGARITHMS = ((4, 9), (6, 26))


def split(value: mpf, parts: int, bits: int, last_bits: int) -> list[mpf]:
    """`value` as a sum of numbers of few bits: the product of each but the last with a small integer is exact."""
    numbers = []
    for part in range(parts):
        with mp.workprec(last_bits if part == parts - 1 else bits):
            numbers.append(+value)
        value -= numbers[-1]
    return numbers


def largest_error(function: Callable[[mpf], mpf], coefficients: list[mpf], low: mpf, high: mpf) -> mpf:
    points = [low + (high - low) * i / 400 for i in range(401)]
    return max(abs(mp.polyval(coefficients, x) - function(x)) for x in points)


def print_numbers(name: str, values: list[mpf], bits: int) -> None:
    suffix, digits, number = ("F", 9, "float") if bits == 32 else ("", 17, "double")
    numbers = ", ".join(f"{mp.nstr(value, digits, min_fixed=0, max_fixed=0)}{suffix}" for value in values)
    print(f"inline constexpr {number} {name}_{bits}[] = {{{numbers}}};")


def print_array(
    name: str, formula: str, function: Callable[[mpf], mpf], low: mpf, high: mpf, count: int, bits: int
) -> None:
    coefficients = chebyfit(function, [low, high], count)
    error = largest_error(function, coefficients, low, high)
    print(f"\n// {formula}; P is within {float(error):.1e}")
    print_numbers(name, coefficients[::-1], bits)


def main() -> None:
    print("// Coefficients of the polynomials in simd_math-inl.h, lowest power first, for fp32 and fp64.")
    print("// Printed by tools/fit_functions.py; change them there.")
    print("#pragma once\n\nnamespace gdpa::cpu {")
    for fit in FITS:
        for bits, interval, count in zip((32, 64), fit.intervals, fit.counts, strict=True):
            print_array(fit.name, fit.formula, fit.function, *interval, count, bits)
    for bits, (high, count) in zip((32, 64), ERFC_LOGARITHMS, strict=True):
        formula = f"log2(erfc(x)) = P(x - 1), x from 1 to {high}"
        print_array("erfc_logarithm", formula, erfc_logarithm, mpf(0), mpf(high - 1), count, bits)
    for name, value in (("log_2_parts", log(2)), ("half_pi_parts", pi / 2)):
        print("\n// Their sum is the constant; a product of any but the last with an integer of 13 (fp32) or 20 (fp64)")
        print("// bits is exact, also without a fused multiply-add.")
        parts = 2 if name == "log_2_parts" else 4
        print_numbers(name, split(value, parts, 11, 24), 32)
        print_numbers(name, split(value, parts, 33, 53), 64)
    print("\n}  // namespace gdpa::cpu")


if __name__ == "__main__":
    main()
