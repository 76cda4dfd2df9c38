#!/usr/bin/env python3
"""Fits the polynomials and tables of src/ir/lower/math_coefficients.h.

    tools/fit_polynomials.py > src/ir/lower/math_coefficients.h        (needs mpmath)

Polynomials are minimax in relative error (Remez exchange, 60 digits), then rounded coefficient by
coefficient to the type, from the lowest up; after each of the first three the rest is fitted again
and absorbs the rounding.
Each section function returns lines of C++; all arrays are ascending in the power.
"""

import mpmath as mp

mp.mp.dps = 60


def rounded(value, bits):
    """The nearest number with `bits` bits (24: float, 53: double)."""
    if value == 0:
        return mp.mpf(0)
    scale = bits - 1 - int(mp.floor(mp.log(abs(value), 2)))
    return mp.nint(mp.ldexp(value, scale)) / mp.mpf(2) ** scale


def solve_reference(f, weight, powers, points):
    size = len(points)
    matrix, right = mp.matrix(size, size), mp.matrix(size, 1)
    for row, x in enumerate(points):
        for column, power in enumerate(powers):
            matrix[row, column] = x**power
        matrix[row, size - 1] = (-1) ** row / weight(x)
        right[row] = f(x)
    return list(mp.lu_solve(matrix, right))


def remez(f, weight, low, high, powers, rounds=15):
    """Coefficients c minimising max |weight(x) (f(x) - sum c_i x^powers_i)| and that maximum."""
    size = len(powers) + 1
    low, high = mp.mpf(low), mp.mpf(high)
    points = [
        (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / size)
        for i in range(size)
    ]
    grid_size = 24 * size
    grid = [
        (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * i / grid_size)
        for i in range(grid_size + 1)
    ]
    tiny = (high - low) / 10**6  # targets are quotients with no value at zero
    points = [x if abs(x) > tiny else tiny for x in points]
    grid = [x for x in grid if abs(x) > tiny]
    values = [(f(x), weight(x)) for x in grid]
    best = None
    for _ in range(rounds):
        coefficients = solve_reference(f, weight, powers, points)[:-1]
        errors = [
            w * (v - sum(c * x**p for c, p in zip(coefficients, powers)))
            for x, (v, w) in zip(grid, values)
        ]
        worst = max(abs(e) for e in errors)
        if best is None or worst < best[1]:
            best = (coefficients, worst)
        extrema = []
        for x, e in zip(grid, errors):
            if extrema and (extrema[-1][1] > 0) == (e > 0):
                if abs(e) > abs(extrema[-1][1]):
                    extrema[-1] = (x, e)
            else:
                extrema.append((x, e))
        if len(extrema) < size:
            break
        while len(extrema) > size:
            extrema.pop(0 if abs(extrema[0][1]) < abs(extrema[-1][1]) else -1)
        points = [x for x, _ in extrema]
    return best


def fit(f, low, high, powers, bits, fixed=None, weight=None):
    """Rounded coefficients of all powers (dict) in order; `fixed` gives some. Relative error."""
    fixed = dict(fixed or {})
    weight = weight or (lambda x: 1 / abs(f(x)))
    error = None
    for power in powers:
        if power in fixed:
            continue
        rest = [p for p in powers if p not in fixed]
        # The lowest power is taken out of target and basis: the basis is then a Chebyshev system,
        # which Remez needs.
        lead = rest[0]
        target = lambda x: (f(x) - sum(c * x**p for p, c in fixed.items())) / x**lead
        lead_weight = lambda x: weight(x) * abs(x) ** lead
        coefficients, error_now = remez(target, lead_weight, low, high, [p - lead for p in rest])
        error = error if error is not None else error_now
        for p, c in list(zip(rest, coefficients))[: 1 if power in powers[:3] else None]:
            fixed[p] = rounded(c, bits)
    return [fixed[p] for p in powers], error


def number(value):
    return repr(float(value))


def array(name, values, note=""):
    lines, line = [], "   "
    for value in values:
        text = number(value) + ","
        if len(line) + len(text) + 1 > 112:
            lines.append(line)
            line = "   "
        line += " " + text
    lines.append(line.rstrip(","))
    head = f"inline constexpr double {name}[] = {{"
    return ([f"// {note}"] if note else []) + [head] + lines + ["};"]


def polynomial(name, f, low, high, powers, bits, fixed=None, weight=None, scale=1):
    coefficients, error = fit(f, low, high, powers, bits, fixed, weight)
    return array(
        name, [c * scale for c in coefficients], f"relative error 2^{float(mp.log(error, 2)):.1f}"
    )


def both(name, degree_float, degree_double, make):
    return make(name + "Float", degree_float, 24) + make(name + "Double", degree_double, 53)


# exp(r), |r| <= ln(2)/32, and 2^r, |r| <= 1/32. The first coefficients are 1 so that exp(0) = 1.
def exponentials():
    half = mp.log(2) / 32 * (1 + mp.mpf(2) ** -10)
    ones = {0: mp.mpf(1), 1: mp.mpf(1)}
    lines = both(
        "kExp", 3, 6, lambda n, d, b: polynomial(n, mp.exp, -half, half, range(d + 1), b, ones)
    )
    one, expm1 = {1: mp.mpf(1)}, lambda x: mp.expm1(x)
    for name, degree, bits in (("kExpm1Float", 4, 24), ("kExpm1Double", 7, 53)):
        coefficients, _ = fit(expm1, -half, half, range(1, degree + 1), bits, one)
        lines += array(name, coefficients[1:], "e^r - 1 = r + r^2 (...)")
    half2 = mp.mpf(1) / 32
    lines += both(
        "kExp2",
        3,
        6,
        lambda n, d, b: polynomial(
            n, lambda x: mp.mpf(2) ** x, -half2, half2, range(d + 1), b, {0: mp.mpf(1)}
        ),
    )
    lines += array(
        "kExp2Table", [rounded(mp.mpf(2) ** (mp.mpf(j) / 16), 53) for j in range(16)], "2^(j/16)"
    )
    for bits, name in ((24, "Float"), (53, "Double")):
        entries = [mp.mpf(2) ** (mp.mpf(j) / 16) for j in range(16)]
        lines += array(
            f"kExp2TableLow{name}",
            [rounded(e - rounded(e, bits), bits) for e in entries],
            "what the rounding of 2^(j/16) lost",
        )
        ln2 = rounded(mp.log(2), bits)
        lines += array(
            f"kLn2{name}", [ln2, rounded(mp.log(2) - ln2, bits)], "ln 2, high and low part"
        )
    return lines


def centre(j):
    """Centre of interval j = (i + 9) mod 16; i, the nearest sixteenth, is halved from 7 on."""
    i = (j + 7) % 16
    return 1 + mp.mpf(i) / 16 if i < 7 else (1 + mp.mpf(i) / 16) / 2


def gal_entry(c, log, bits, slack):
    """r near 1/c whose logarithm is within 2^-slack ulp of a number of the type: no error."""
    if c == 1:
        return mp.mpf(1), mp.mpf(0)
    start = rounded(1 / c, bits)
    step = mp.mpf(2) ** (1 - bits) if start >= 1 else mp.mpf(2) ** (-bits)
    spread = 1 << (
        bits - 11 - slack
    )  # candidates lie within 2^-7 / 8 of the centre, in odd strides
    for k in range(1 << (slack + 2)):
        for r in (start + k * (spread + 1) * step, start - k * (spread + 1) * step):
            value = -log(r)
            near = rounded(value, bits)
            if abs(value - near) < abs(near) * mp.mpf(2) ** (-bits - slack):
                return r, near
    raise RuntimeError("no table entry")


def logarithms():
    lines, log2 = [], lambda x: mp.log(x, 2)
    order = range(16)
    for name, log in (("kLog", mp.log), ("kLog2", log2)):
        for bits, type_name in ((24, "Float"), (53, "Double")):
            entries = [gal_entry(centre(j), log, bits, 7) for j in order]
            lines += array(
                f"{name}Rcp{type_name}",
                [r for r, _ in entries],
                "r_j near 1 / centre with an exact logarithm",
            )
            lines += array(f"{name}Table{type_name}", [v for _, v in entries], "-log(r_j)")
    half = mp.mpf(1) / 32 * (1 + mp.mpf(2) ** -8)
    for name, degrees in (("Float", 4), ("Double", 9)):
        bits = 24 if name == "Float" else 53
        lines += polynomial(
            f"kLog{name}",
            lambda x: mp.log(1 + x),
            -half,
            half,
            range(1, degrees + 1),
            bits,
            {1: mp.mpf(1)},
        )
        exact = {1: 1 / mp.log(2)}
        coefficients, _ = fit(
            lambda x: log2(1 + x), -half, half, range(1, degrees + 1), bits, exact
        )
        high = rounded(exact[1], bits)
        lines += array(
            f"kLog2E{name}", [high, rounded(exact[1] - high, bits)], "log2(e), high and low part"
        )
        lines += array(f"kLog2{name}", coefficients[1:], "log2(1 + r) = r log2(e) + r^2 (...)")
    return lines


def parts(value, bits, count):
    """`count` numbers of `bits` bits whose sum is `value` as closely as they can."""
    result = []
    for _ in range(count):
        result.append(rounded(value, bits))
        value -= result[-1]
    return result


# sin r and cos r for |r| <= pi/4 (a little more: the quadrant is rounded), in s = r^2.
def trigonometric():
    lines, edge = [], (mp.pi / 4 * (1 + mp.mpf(2) ** -8)) ** 2
    for name, bits, sine_degree, cosine_degree, count in (
        ("Float", 24, 3, 3, 3),
        ("Double", 53, 6, 5, 3),
    ):
        lines += array(f"kHalfPi{name}", parts(mp.pi / 2, bits, count), "pi / 2 in parts")
        tiny = mp.mpf(10) ** -30
        sine = lambda s: (mp.sin(mp.sqrt(s + tiny)) / mp.sqrt(s + tiny) - 1) / (s + tiny)
        cosine = lambda s: (mp.cos(mp.sqrt(s + tiny)) - 1 + s / 2) / (s + tiny) ** 2
        lines += polynomial(
            f"kSin{name}",
            sine,
            0,
            edge,
            range(sine_degree),
            bits,
            None,
            lambda s: s / (mp.sin(mp.sqrt(s + tiny)) / mp.sqrt(s + tiny)),
        )
        lines += polynomial(
            f"kCos{name}",
            cosine,
            0,
            edge,
            range(cosine_degree),
            bits,
            None,
            lambda s: s**2 / mp.cos(mp.sqrt(s)),
        )
    return lines


# asin r = r + r^3 p(r^2) for r <= 1/2, atan q = q + q^3 p(q^2) for q <= tan(pi/8).
def inverse_trigonometric():
    lines, tiny = [], mp.mpf(10) ** -30
    quotient = lambda f, s: (f(mp.sqrt(s + tiny)) / mp.sqrt(s + tiny) - 1) / (s + tiny)
    edge = (mp.sqrt(2) - 1) ** 2 * (1 + mp.mpf(2) ** -20)
    for name, bits, asin_degree, atan_degree in (("Float", 24, 4, 4), ("Double", 53, 11, 10)):
        lines += polynomial(
            f"kAsin{name}",
            lambda s: quotient(mp.asin, s),
            0,
            mp.mpf(1) / 4,
            range(asin_degree + 1),
            bits,
            None,
            lambda s: s * mp.sqrt(s + tiny) / mp.asin(mp.sqrt(s + tiny)),
        )
        lines += polynomial(
            f"kAtan{name}",
            lambda s: quotient(mp.atan, s),
            0,
            edge,
            range(atan_degree + 1),
            bits,
            None,
            lambda s: s * mp.sqrt(s + tiny) / mp.atan(mp.sqrt(s + tiny)),
        )
    return lines


# erf(j width + r) for j = 0 ... 15, |r| <= width / 2: one polynomial an interval; row k of the
# matrix holds the coefficients of r^k of all intervals. The last interval lies where erf rounds
# to 1.
def error_function():
    lines = []
    for name, bits, width, degree in (
        ("Float", 24, mp.mpf(17) / 64, 6),
        ("Double", 53, mp.mpf(13) / 32, 13),
    ):
        half, columns = width / 2 * (1 + mp.mpf(2) ** -10), []
        for j in range(16):
            if j == 15:
                columns.append([mp.mpf(1)] + [mp.mpf(0)] * degree)
                continue
            f = lambda r, j=j: mp.erf(j * width + r)
            powers = (
                range(1, degree + 1, 2) if j == 0 else range(degree + 1)
            )  # erf is odd: erf(0) = 0 exactly
            slope = 2 / mp.sqrt(mp.pi)
            coefficients, _ = fit(
                f, 0 if j == 0 else -half, half, powers, bits, {1: slope} if j == 0 else None
            )
            column = dict(zip(powers, coefficients))
            columns.append([column.get(k, mp.mpf(0)) for k in range(degree + 1)])
        low = columns[0][1] - rounded(columns[0][1], bits)
        slope_low = [rounded(low, bits)] + [mp.mpf(0)] * 15
        lines += array(f"kErfSlopeLow{name}", slope_low, "what rounding the slope at 0 lost")
        lines += [f"inline constexpr double kErfWidth{name} = {number(width)};"]
        lines += [f"inline constexpr double kErf{name}[][16] = {{"]
        for k in range(degree + 1):
            row = array("", [columns[j][k] for j in range(16)])[1:-1]
            lines += ["    {" + row[0].lstrip()] + ["    " + line for line in row[1:]]
            lines[-1] += "},"
        lines += ["};"]
    return lines


# log2 in two parts for pow: -log2(r_j) on a grid coarse enough that the exponent adds to it
# exactly, and the rest.
def powers():
    lines, half = [], mp.mpf(1) / 32 * (1 + mp.mpf(2) ** -4)
    for name, bits, grid, degree in (("Float", 24, 14, 6), ("Double", 53, 40, 11)):
        rcp = [rounded(1 / centre(j), bits) for j in range(16)]
        logs = [-mp.log(r, 2) for r in rcp]
        high = [mp.nint(l * 2**grid) / mp.mpf(2) ** grid for l in logs]
        lines += array(f"kPowRcp{name}", rcp, "1 / centre")
        lines += array(f"kPowHigh{name}", high, "-log2(rcp), high part")
        lines += array(
            f"kPowLow{name}", [rounded(l - h, bits) for l, h in zip(logs, high)], "low part"
        )
        coefficients, _ = fit(
            lambda x: mp.log(1 + x, 2), -half, half, range(1, degree + 1), bits, {1: 1 / mp.log(2)}
        )
        lines += array(f"kPowLog{name}", coefficients[1:], "log2(1 + r) = r log2(e) + r^2 (...)")
    return lines


HEAD = """// Coefficients and tables of the elementary functions, made by
//   tools/fit_polynomials.py > src/ir/lower/math_coefficients.h
// Polynomials ascend in the power. Names end in the type whose rounding they carry.
#pragma once

namespace mercer::ir::coefficients {
"""


def main():
    print(HEAD)
    for section in SECTIONS:
        print("\n".join(section()))
        print()
    print("}  // namespace mercer::ir::coefficients")


SECTIONS = [exponentials, logarithms, powers, trigonometric, inverse_trigonometric, error_function]

if __name__ == "__main__":
    main()
