"""What Jupyter shows of a formula has the formula's values, and matplotlib sets it.

The LaTeX is read back by a reader of its own, which knows the usual meaning of the notation: a sum
takes all factors to its right, a minus all factors of its term.
"""

from __future__ import annotations

import math
import random
import re

import mercer as mc
import numpy as np
import pytest

rng = np.random.default_rng(3)
X, Z, W = (rng.uniform(0.5, 1.5, 3) for _ in range(3))
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z]|\d+\.?\d*|\.\d+|'+|\S")
COMPARE = {
    "<": float.__lt__, ">": float.__gt__, r"\leq": float.__le__, r"\geq": float.__ge__,
    "=": float.__eq__, r"\neq": float.__ne__,
}  # fmt: skip
CALLS = {
    r"\exp": math.exp, r"\log": math.log, r"\sin": math.sin, r"\cos": math.cos,
    r"\arcsin": math.asin, r"\arccos": math.acos, r"\tanh": math.tanh, r"\max": max, r"\min": min,
    "atan2": math.atan2, "erf": math.erf, "copysign": math.copysign, "round": round,
    "sign": lambda t: float((t > 0) - (t < 0)),
}  # fmt: skip


class Latex:
    """A recursive descent that computes as it reads: indices are loops over the features."""

    def __init__(self, text, names, index=None):
        self.tokens = [t for t in TOKEN.findall(text) if t not in (r"\;", r"\quad")]
        self.at, self.names, self.index = 0, names, dict(index or {"k": 0})

    def sees(self, *wanted):
        return tuple(self.tokens[self.at : self.at + len(wanted)]) == wanted

    def take(self, *wanted):
        assert not wanted or self.sees(*wanted), (wanted, self.tokens[self.at :])
        self.at += max(len(wanted), 1)
        return self.tokens[self.at - 1]

    def accept(self, *wanted):
        found = self.sees(*wanted)
        self.at += found * len(wanted)
        return found

    def condition(self):
        found = self.both()
        while self.accept(r"\vee"):
            found = self.both() or found
        return found

    def both(self):
        found = self.compared()
        while self.accept(r"\wedge"):
            found = self.compared() and found
        return found

    def compared(self):
        if self.accept(r"\neg", r"\left", "("):
            found = not self.condition()
            self.take(r"\right", ")")
            return found
        if self.sees(r"\left", "("):  # of conditions, or of a number that is compared
            begin = self.at
            self.take(r"\left", "(")
            try:
                found = self.condition()
                self.take(r"\right", ")")
                if self.tokens[self.at] not in {"+", "-", r"\,", r"\cdot", "^", *COMPARE}:
                    return found
            except (AssertionError, KeyError):
                pass
            self.at = begin
        left = self.sum()
        return COMPARE[self.take()](float(left), float(self.sum()))

    def sum(self):
        found = -self.product() if self.accept("-") else self.product()
        while self.sees("+") or self.sees("-"):
            sign = 1 if self.take() == "+" else -1
            found += sign * self.product()
        return found

    def product(self):
        found = self.power()
        while self.accept(r"\,") or self.accept(r"\cdot"):
            found *= self.power()
        return found

    def power(self):
        base = self.primary()
        return base ** self.braced() if self.accept("^") else base

    def braced(self):
        self.take("{")
        found = self.sum()
        self.take("}")
        return found

    def subscript(self):
        self.take("_", "{")
        found = ""
        while not self.sees("}"):
            found += self.take()
        self.take()
        return found

    def over(self, fold, body):
        """A big operator folds its body over the features."""
        index, begin, values = self.subscript(), self.at, []
        for k in range(3):
            inner = Latex("", self.names, {**self.index, index: k})
            inner.tokens, inner.at = self.tokens, begin
            values.append(getattr(inner, body)())
            self.at = inner.at
        return fold(values)

    def arguments(self):
        self.take(r"\left", "(")
        found = [self.sum()]
        while self.accept(","):
            found.append(self.sum())
        self.take(r"\right", ")")
        return found

    def primary(self):
        word = self.take()
        if word == r"\left":
            return self.delimited(self.take())
        if word == r"\frac":
            return self.braced() / self.braced()
        if word == r"\sqrt":
            return math.sqrt(self.braced())
        if word in (r"\sum", r"\prod"):
            return self.over(sum if word == r"\sum" else math.prod, "product")
        if word in (r"\max", r"\min") and self.sees("_"):
            return self.over(max if word == r"\max" else min, "primary")
        if word == r"\log" and self.accept("_", "{", "2", "}"):
            return math.log2(*self.arguments())
        if word in CALLS:
            return CALLS[word](*self.arguments())
        if word == r"\operatorname":
            return CALLS[self.word()](*self.arguments())
        if word[0].isdigit():
            return float(word)
        return self.value(word)

    def word(self):
        self.take("{")
        found = ""
        while not self.sees("}"):
            found += self.take().replace("\\_", "_")
        self.take()
        return found

    def value(self, word):
        name = self.word() if word == r"\mathrm" else word.removeprefix("\\")
        mark = self.subscript() if self.sees("_") else ""
        if word in ("x", "z", "w"):
            return float({"x": X, "z": Z, "w": W}[word][self.index[mark]])
        mark, _, feature = mark.partition(",")
        found = self.names[name + ("_" if mark else "") + mark]
        if isinstance(found, str):  # a part with a name, at the feature where it is read
            return Latex(found, self.names, {"k": self.index[feature or "k"]}).sum()
        return found

    def delimited(self, kind):
        if kind == r"\{":
            yes = self.sum()
            assert (self.take(), self.word()) == (r"\mathrm", "if")
            condition = self.condition()
            self.take(",")
            no = self.sum()
            assert (self.take(), self.word()) == (r"\mathrm", "else")
            found = yes if condition else no
        else:
            found = float(self.condition()) if kind == "[" else self.sum()
        self.take(r"\right")
        self.take()
        outside = {"|": abs, r"\lfloor": math.floor, r"\lceil": math.ceil}
        return outside[kind](found) if kind in outside else found


def computed(f, **params):
    """The value of the LaTeX at X and Z, with what it says of names."""
    names = {"row_m": 0.7, "col_n": 0.4, "i": 5.0, "j": 6.0, "K": 3.0, "pi": math.pi}
    text, _, defaults = f._repr_latex_().strip("$").partition(r", \quad ")
    text, _, bindings = text.partition(r" \quad \mathrm{with} \; ")
    for part in filter(None, defaults.split(r", \; ")):
        name, number = part.split(" = ")
        names[re.sub(r"\\mathrm|[\\{}]", "", name)] = Latex(number, {}).sum()
    for part in filter(None, re.split(r", \\; (?=s_\{[\d,k]+\} = )", bindings)):
        name, _, definition = part.partition(" = ")
        names[re.sub(r"[{}]|,k", "", name)] = definition
    reader = Latex(text, names | params)
    found = reader.sum()
    assert reader.at == len(reader.tokens), text
    return found


def expected(f, **params):
    sides = {"row": np.array([0.7]), "col": np.array([0.4])}
    leaves = mc._mercer.leaves(f)
    given = {name: array for name, array in sides.items() if name in leaves}
    given |= {"w": W} if "w" in leaves else {}
    return mc.pairwise(f, X[None], Z[None], i_offset=5, j_offset=6, **given, **params)[0, 0]


def is_set(f):
    """Whether braces and delimiters are balanced, and matplotlib sets it."""
    mathtext = pytest.importorskip("matplotlib.mathtext")
    text = f._repr_latex_()
    assert text.count("{") == text.count("}")
    assert len(re.findall(r"\\left\b", text)) == len(re.findall(r"\\right\b", text))
    mathtext.MathTextParser("path").parse(text)
    return True


@pytest.mark.parametrize("name", sorted({row["name"] for row in mc.zoo.table}))
def test_the_zoo(name):
    f = getattr(mc.zoo, name)()
    assert is_set(f)
    assert computed(f) == pytest.approx(expected(f), rel=1e-9, abs=1e-12)


def random_formula(draw, depth, inside):
    """A text of random operations, within a reduction or outside all."""
    if depth == 0:
        if inside:
            return draw.choice(["x", "z", "w", "p", "2", "0.25", "row"])
        return draw.choice(["sum(x*z)", "a", "alpha", "b_2", "K", "1e-3", "row", "col", "i"])

    def part():
        return random_formula(draw, depth - 1, inside)

    def condition():
        sign = draw.choice(["<", "<=", ">", ">=", "==", "!="])
        return draw.choice([f"({part()}) {sign} ({part()})", part()])

    kind = draw.randrange(9)
    if kind < 4:
        return f"({part()}){draw.choice('+-*/')}({part()})"
    if kind == 4:
        name = draw.choice(["sin", "cos", "tanh", "abs", "square", "sign", "floor", "-", "-"])
        return f"{name}({part()})"
    if kind == 5:
        name = draw.choice(
            ["exp(-abs", "sqrt(abs", "log1p(abs", "exp2(-abs", "rcp(1+abs", "expm1(-abs"]
        )
        return f"{name}({part()}))"
    if kind == 6:
        return f"(1+abs({part()}))^{draw.choice(['2', '-1', 'p', '(1/3)', '-p'])}"
    if kind == 7:
        join = draw.choice(["&&", "||"])
        either = f"{condition()} {join} {draw.choice(['', '!'])}({condition()})"
        return f"where({either}, {part()}, {part()})"
    if inside:
        return f"{draw.choice(['max', 'min'])}({part()}, {part()})"
    fold = draw.choice(["sum", "prod", "max", "min", "logsumexp"])
    return f"{fold}({random_formula(draw, depth - 1, True)})"


@pytest.mark.parametrize("seed", range(60))
def test_random_formulas(seed):
    draw = random.Random(seed)
    f = mc.parse(random_formula(draw, 4, False))
    params = {"a": 1.25, "alpha": 0.5, "b_2": -0.75, "p": 1.5}
    params = {name: number for name, number in params.items() if name in f.parameters}
    assert is_set(f)
    with np.errstate(all="ignore"):
        wanted = expected(f, **params)
    try:
        found = computed(f, **params)
    except (ZeroDivisionError, OverflowError):
        assert not abs(wanted) < 1e300
        return
    assert found == pytest.approx(wanted, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("-sum(x*z)*b", r"\left(-\sum_{k} x_{k} \, z_{k}\right) \, b"),
        ("(a < b)*2 - -c", r"\left[a < b\right] \cdot 2 - \left(-c\right)"),
        ("param(x) + param(sigma)*two_words", r"\mathrm{x} + \sigma \, \mathrm{two\_words}"),
        ("reduce(x*z, a + t, 0)", r"\operatorname{reduce}_{k}\left(a, \; t = x_{k} \, z_{k}, \; "
         r"a \leftarrow a + t, \; a = 0\right)"),
        ('sum(ptx("abs.f32 {out}, {0};", x; abs(x)))', r"\sum_{k} \left|x_{k}\right|"),
        ("sum(x/sqrt(sum(x*x)))", r"\sum_{k} \frac{x_{k}}{\sqrt{\sum_{l} x_{l} \, x_{l}}}"),
        ("param(b, 2)*1.5e-7", r"b \, \left(1.5 \cdot 10^{-7}\right), \quad b = 2"),
    ],
)  # fmt: skip
def test_notation(text, latex):
    f = mc.parse(text)
    assert f._repr_latex_() == f"${latex}$"
    assert is_set(f)


def test_parts_of_formulas():
    assert is_set(mc.x - mc.z)
    assert is_set(mc.differentiate("exp(-sum(abs(x-z)^p)/b)", "x"))


def test_html_has_the_mathematics_and_the_text():
    html = mc.kernel("where(i<j, 1, b*sum(x*z))").bind(b=np.ones(2))._repr_html_()
    assert r"\sum_{k} x_{k}" in html
    assert "where(i &lt; j, 1, b*sum(x*z))" in html
    assert "with b" in html
    assert "<j" not in html
