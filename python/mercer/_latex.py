"""A formula as LaTeX, which Jupyter shows: its text, read once more and written as mathematics.

Only what matplotlib's mathtext knows is used. Brackets around a comparison are 1 where it holds,
else 0. Features have the index k, those of a sum inside another one l, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from mercer import _mercer

# Binding strengths, as in the grammar; a sum takes all factors to its right.
_OR, _AND, _COMPARE, _SUM, _PRODUCT, _PREFIX, _POWER, _PRIMARY = range(1, 9)
_INFIX = {
    "||": _OR, "&&": _AND, "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE,
    "==": _COMPARE, "!=": _COMPARE, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT,
}  # fmt: skip
_SIGNS = {
    "||": r"\vee", "&&": r"\wedge", "<": "<", "<=": r"\leq", ">": ">", ">=": r"\geq", "==": "=",
    "!=": r"\neq", "+": "+", "-": "-",
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r'|(?P<string>"[^"]*")|(?P<symbol>\|\||&&|[<>=!]=|[-+*/^<>!()\[\],;=]))'
)
_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu",
    "nu", "xi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega",
)  # fmt: skip
_SYMBOLS = frozenset("xzwijKkl")  # letters that are no parameters


class _Part(NamedTuple):
    """A piece of the formula: how tightly it binds, and whether a sum at its end is open."""

    text: str
    strength: int
    is_open: bool = False

    def inside(self, strength: int) -> str:
        """The text, in parentheses unless it binds this tightly."""
        return self.text if self.strength >= strength else rf"\left({self.text}\right)"


def _call(name: str, *arguments: _Part) -> _Part:
    return _Part(rf"{name}\left({', '.join(a.text for a in arguments)}\right)", _POWER)


def _operator(name: str) -> Callable[..., _Part]:
    return lambda *arguments: _call(rf"\operatorname{{{name}}}", *arguments)


def _word(name: str) -> Callable[..., _Part]:
    return lambda *arguments: _call(rf"\{name}", *arguments)


def _fraction(a: _Part, b: _Part) -> _Part:
    if a.strength == _PREFIX and a.text.startswith("-"):
        return _Part(rf"-\frac{{{a.text[1:]}}}{{{b.text}}}", _PREFIX)
    return _Part(rf"\frac{{{a.text}}}{{{b.text}}}", _POWER)


def _product(a: _Part, b: _Part) -> _Part:
    left = rf"\left({a.text}\right)" if a.is_open else a.inside(_PRODUCT)
    is_sum = b.strength == _PRODUCT and b.text.startswith((r"\sum", r"\prod"))
    right = b.text if is_sum else b.inside(_PREFIX + 1)
    sign = r" \cdot " if right[0].isdigit() else r" \, "
    return _Part(left + sign + right, _PRODUCT, is_sum)


def _sum(a: _Part, sign: str, b: _Part) -> _Part:
    is_negative = b.text.startswith("-")
    right = rf"\left({b.text}\right)" if is_negative else b.inside(_SUM + 1)
    return _Part(f"{a.inside(_SUM)} {sign} {right}", _SUM)


def _power(a: _Part, b: str) -> _Part:
    return _Part(f"{a.inside(_PRIMARY)}^{{{b}}}", _POWER)


def _counted(part: _Part) -> _Part:
    """A number: what is true or false, is 1 or 0."""
    return _Part(rf"\left[{part.text}\right]", _PRIMARY) if part.strength <= _COMPARE else part


def _truth(part: _Part) -> _Part:
    """What is true or false: a number is true where it is not 0."""
    return part if part.strength <= _COMPARE else _Part(rf"{part.text} \neq 0", _COMPARE)


_ONE = _Part("1", _PRIMARY)
_FUNCTIONS: dict[str, Callable[..., _Part]] = {
    "abs": lambda t: _Part(rf"\left|{t.text}\right|", _PRIMARY),
    "square": lambda t: _power(t, "2"),
    "sqrt": lambda t: _Part(rf"\sqrt{{{t.text}}}", _POWER),
    "rsqrt": lambda t: _Part(rf"\frac{{1}}{{\sqrt{{{t.text}}}}}", _POWER),
    "rcp": lambda t: _fraction(_ONE, t),
    "exp": _word("exp"),
    "exp2": lambda t: _power(_Part("2", _PRIMARY), t.text),
    "expm1": lambda t: _sum(_call(r"\exp", t), "-", _ONE),
    "log": _word("log"),
    "log2": lambda t: _call(r"\log_{2}", t),
    "log1p": lambda t: _call(r"\log", _sum(_ONE, "+", t)),
    "sin": _word("sin"),
    "cos": _word("cos"),
    "asin": _word("arcsin"),
    "acos": _word("arccos"),
    "tanh": _word("tanh"),
    "floor": lambda t: _Part(rf"\left\lfloor {t.text} \right\rfloor", _PRIMARY),
    "ceil": lambda t: _Part(rf"\left\lceil {t.text} \right\rceil", _PRIMARY),
    "max": _word("max"),
    "min": _word("min"),
    "xlogy": lambda a, b: _product(a, _call(r"\log", b)),
    "fma": lambda a, b, c: _sum(_product(a, b), "+", c),
    "mean": lambda t: _fraction(t, _Part("K", _PRIMARY)),
}


def _number(text: str) -> _Part:
    if text == "3.141592653589793":
        return _Part(r"\pi", _PRIMARY)
    digits, _, exponent = text.lower().partition("e")
    if not exponent:
        return _Part(digits, _PRIMARY)
    power = f"10^{{{int(exponent)}}}"
    if digits == "1":
        return _Part(power, _POWER)
    return _Part(rf"{digits} \cdot {power}", _PRODUCT)


def _parameter(name: str) -> _Part:
    if name in _GREEK:
        return _Part(f"\\{name}", _PRIMARY)
    stem, _, index = name.partition("_")
    letter = rf"\mathrm{{{stem}}}" if len(stem) != 1 or stem in _SYMBOLS else stem
    if stem and index.isdigit() and str(int(index)) == index:
        return _Part(f"{letter}_{{{index}}}", _PRIMARY)
    if name == stem:
        return _Part(letter, _PRIMARY)
    return _Part(r"\mathrm{" + name.replace("_", r"\_") + "}", _PRIMARY)


class _Reader:
    """Reads the text of a formula, which has no faults, and writes its parts as it goes."""

    def __init__(self, text: str) -> None:
        self._tokens = [(m.lastgroup, m[m.lastgroup or 0]) for m in _TOKEN.finditer(text)]
        self._tokens.append(("end", ""))
        self._at, self._depth, self._slots = 0, 0, 0
        self._bound: dict[str, bool] = {}  # and whether it reads a feature outside sums
        self._is_at_feature = False

    def formula(self) -> str:
        said = []
        while self._tokens[self._at][0] == "name" and self._tokens[self._at + 1][1] == "=":
            name = self._take()
            self._take()
            text = self._whole()
            self._bound[name], self._is_at_feature = self._is_at_feature, False
            said.append(f"{self._named(name).text} = {text}")
            self._take()
        result = self._whole()
        return result if not said else result + r" \quad \mathrm{with} \; " + r", \; ".join(said)

    def _whole(self) -> str:
        """An expression; where it reads a feature outside sums, that has the index k."""
        begin = self._at
        text = self._expression().text
        if self._is_at_feature:
            self._at, self._depth = begin, 1
            text = self._expression().text
            self._depth = 0
        return text

    def _index(self, depth: int) -> str:
        return "kl"[(depth - 1) % 2] + "'" * ((depth - 1) // 2)

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _sees(self, symbol: str) -> bool:
        return self._tokens[self._at] == ("symbol", symbol)

    def _accept(self, symbol: str) -> bool:
        found = self._sees(symbol)
        self._at += found
        return found

    def _named(self, name: str) -> _Part:
        """A part with a name of the printer's, s and a number, and the index that it reads."""
        index = name[1:]
        if self._bound[name]:
            self._is_at_feature |= self._depth == 0
            index += f",{self._index(max(self._depth, 1))}"
        return _Part(f"{name[0]}_{{{index}}}", _PRIMARY)

    def _expression(self, least: int = 0) -> _Part:
        return _counted(self._any(least))

    def _condition(self, least: int = 0) -> _Part:
        return _truth(self._any(least))

    def _any(self, least: int) -> _Part:
        left = self._prefix()
        while True:
            sign = self._tokens[self._at][1]
            strength = _INFIX.get(sign, 0) if self._tokens[self._at][0] == "symbol" else 0
            if strength == 0 or strength < least:
                return left
            left = _truth(left) if strength <= _AND else _counted(left)
            self._take()
            left = self._joined(left, sign, strength)

    def _joined(self, left: _Part, sign: str, strength: int) -> _Part:
        if strength <= _AND:
            right = self._condition(strength + 1)
            return _Part(
                f"{left.inside(strength)} {_SIGNS[sign]} {right.inside(strength + 1)}", strength
            )
        right = self._expression(strength + 1)
        if strength == _COMPARE:
            return _Part(f"{left.text} {_SIGNS[sign]} {right.text}", _COMPARE)
        if strength == _SUM:
            return _sum(left, _SIGNS[sign], right)
        return _product(left, right) if sign == "*" else _fraction(left, right)

    def _prefix(self) -> _Part:
        if self._accept("!"):
            part = self._condition(_PREFIX)
            return _Part(rf"\neg \left({part.text}\right)", _COMPARE)
        if not self._accept("-"):
            return self._raised()
        part = _counted(self._prefix())
        if part.is_open and part.text.startswith((r"\sum", r"\prod")):
            return _Part(f"-{part.text}", _PREFIX, True)
        return _Part(f"-{part.inside(_POWER)}", _PREFIX)

    def _raised(self) -> _Part:
        base = self._primary()
        if not self._accept("^"):
            return base
        exponent = _counted(self._prefix())
        return _power(_counted(base), exponent.text)

    def _primary(self) -> _Part:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return _number(text)
        if kind == "name":
            return self._function(text) if self._accept("(") else self._name(text)
        part = self._any(0)  # "("
        self._take()
        return part

    def _name(self, name: str) -> _Part:
        index = self._index(max(self._depth, 1))
        if self._slots and re.fullmatch(r"[at]\d*", name):
            return _Part(f"{name[0]}_{{{name[1:]}}}" if name[1:] else name, _PRIMARY)
        if name in self._bound:
            return self._named(name)
        if self._accept("["):
            self._at += 2
        self._is_at_feature |= self._depth == 0 and name in ("x", "z", "w")
        fixed = {
            "x": f"x_{{{index}}}", "z": f"z_{{{index}}}", "w": f"w_{{{index}}}",
            "row": r"\mathrm{row}_{m}", "col": r"\mathrm{col}_{n}", "i": "i", "j": "j", "K": "K",
            "inf": r"\infty", "nan": r"\mathrm{NaN}", "pi": r"\pi",
        }  # fmt: skip
        return _Part(fixed[name], _PRIMARY) if name in fixed else _parameter(name)

    def _function(self, name: str) -> _Part:
        if name == "param":
            found = _parameter(self._take())
            while not self._accept(")"):
                self._take()
            return found
        if name == "reduce":
            return self._reduction()
        if name == "ptx":  # its meaning says what it is
            while self._take() != ";":
                pass
            if self._tokens[self._at + 1][1] == "=":
                self._at += 2
            meaning = self._any(0)
            self._take()
            return meaning
        if name == "where":
            return self._where()
        is_fold = name in ("max", "min") and not self._has_comma()
        if name in ("sum", "prod", "logsumexp", "mean") or is_fold:
            self._depth += 1
            term = self._arguments()[0]
            self._depth -= 1
            return self._over_features(name, term)
        return _FUNCTIONS.get(name, _operator(name))(*self._arguments())

    def _arguments(self) -> list[_Part]:
        parts = [self._expression()]
        while self._accept(","):
            parts.append(self._expression())
        self._take()
        return parts

    def _where(self) -> _Part:
        condition = self._condition()
        self._take()
        yes, no = self._arguments()
        return _Part(
            rf"\left\{{{yes.text} \;\mathrm{{if}}\; {condition.text}, \; "
            rf"{no.text} \;\mathrm{{else}}\right\}}",
            _PRIMARY,
        )

    def _over_features(self, name: str, term: _Part) -> _Part:
        index = f"_{{{self._index(self._depth + 1)}}}"
        if name in ("max", "min"):
            return _Part(rf"\{name}{index} {term.inside(_PRIMARY)}", _POWER)
        if name == "logsumexp":
            exponential = _call(r"\exp", term).text
            return _call(r"\log", _Part(rf"\sum{index} {exponential}", _PRODUCT))
        least = _POWER if term.text.startswith("-") or name == "prod" else _PRODUCT
        inner = term.inside(least)
        found = _Part(rf"\{'prod' if name == 'prod' else 'sum'}{index} {inner}", _PRODUCT, True)
        return _FUNCTIONS["mean"](found) if name == "mean" else found

    def _reduction(self) -> _Part:
        """A reduction of one's own: the term t, how the state a follows from it, its start."""
        self._depth += 1
        terms = self._tuple()
        self._slots = len(terms)
        names = ["{}"] if len(terms) == 1 else [f"{{}}_{{{{{i}}}}}" for i in range(len(terms))]
        self._take()
        states = self._tuple()
        self._slots = 0
        self._take()
        first = self._tuple()
        said = [f"{n.format('t')} = {p}" for n, p in zip(names, terms, strict=True)]
        said += [rf"{n.format('a')} \leftarrow {p}" for n, p in zip(names, states, strict=True)]
        said += [f"{n.format('a')} = {p}" for n, p in zip(names, first, strict=True)]
        result = names[0].format("a")
        while self._accept(","):
            key = self._take()
            self._take()
            self._slots = len(terms)
            value = self._tuple()
            self._slots = 0
            result = value[0] if key == "finish" else result
        self._take()
        index = f"_{{{self._index(self._depth)}}}"
        self._depth -= 1
        text = ", \\; ".join([result, *said])
        return _Part(rf"\operatorname{{reduce}}{index}\left({text}\right)", _POWER)

    def _tuple(self) -> list[str]:
        if self._sees("(") and self._has_comma(0):
            self._take()
            return [part.text for part in self._arguments()]
        return [self._expression().text]

    def _has_comma(self, depth: int = 1) -> bool:
        """Whether the parenthesis that is open, or opens here, has several parts."""
        for kind, text in self._tokens[self._at :]:
            if kind != "symbol":
                continue
            depth += (text in "([") - (text in ")]")
            if depth == 0 or (depth == 1 and text == ","):
                return depth == 1
        return False


def latex(f: _mercer.Expr) -> str:
    """The formula as LaTeX, and the numbers that its parameters have by default."""
    text = _Reader(str(f)).formula()
    given = [
        f"{_parameter(name).text} = {_Reader(str(_mercer.constant(value))).formula()}"
        for name, value in f.parameters.items()
        if isinstance(value, float)
    ]
    return text if not given else text + r", \quad " + r", \; ".join(given)


def _repr_latex(self: _mercer.Expr) -> str:
    """The formula between dollars, for Jupyter."""
    return f"${latex(self)}$"


def _repr_html(self: _mercer.Expr) -> str:
    """The formula as mathematics, which Jupyter sets, over its text."""
    import html

    said, known = str(self), self.parameters.items()
    carried = [name for name, v in known if v is not None and not isinstance(v, float)]
    more = f", with {', '.join(carried)}" if carried else ""
    return (
        f"<div>${html.escape(latex(self))}$</div>"
        f"<div><code>{html.escape(said)}</code>{html.escape(more)}</div>"
    )


for _name, _function in (("_repr_latex_", _repr_latex), ("_repr_html_", _repr_html)):
    _function.__name__, _function.__qualname__ = _name, f"Expr.{_name}"
    setattr(_mercer.Expr, _name, _function)
