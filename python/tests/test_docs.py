"""The documentation's code runs: every block of Python, every `mercer explain`, every fault."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import mercer as mc
import pytest
from mercer.__main__ import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A block that is not run everywhere opens with this comment, so that readers see it too.
NEEDS = re.compile(r"# Needs (.+)\.\n")
GPUS = {"an NVIDIA GPU": 1, "two NVIDIA GPUs": 2}
# What a page may import; where one is not installed, the page ends.
OPTIONAL = {
    "dask", "gpytorch", "h5py", "jax", "mpi4py", "optax", "scipy", "sklearn", "torch", "zarr",
}  # fmt: skip
# Pages whose code other tests run: all ranks in test_linalg_distributed.py, and test_recipes.py.
OF_OTHERS = {"distributed_matrices", "recipes"}
# What GitHub and Sphinx colour; directives of MyST have braces.
LANGUAGES = {"", "c", "cmake", "cpp", "python", "sh", "text"}
MADE = {"_build", "gallery"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if not MADE.intersection(path.parts)),
]
WRITTEN = [
    *PAGES,
    *(ROOT / name for name in ("CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
]
# Public modules with a list of their names; the zoo's are in tables made from its rows.
MODULES = [
    f"mercer{name}"
    for name in ("", ".linalg", ".kron", ".models", ".nn", ".sklearn", ".gpytorch", ".dask",
                 ".distributed", ".linalg.distributed", ".compat", ".errors")
]  # fmt: skip
# Pages that comments name.
NAMED = re.compile(r"\b(?:docs|bench)/[a-z_/-]+\.md\b")
SOURCES = {".h", ".cpp", ".cuh", ".inc", ".py", ".txt", ".cmake", ".sh"}
# Files of the checkout, and stages of src/ with what is in them, that pages and comments name.
FILES = re.compile(
    r"(?<![\w/.}<*-])((?:src|include|python|tests|tools|cmake|examples|bench|packaging)/[\w/.-]+\.\w+"
    r"|(?:src/)?(?:core|ir|formula|plan|codegen|jit|backend|ops|c_api|kernels)/[\w/.-]*\w)(?![\w*{])"
)
# Folders that paths are written from.
BASES = ("", "src", "docs", "tests", "tests/unit", "include/mercer", "python/mercer")
FOLDERS = ["include", "src", "python", "tests", "tools", "cmake", "bench", "examples", "packaging"]
FAULTS = re.findall(r"^\| `([^|]+(?:\|\|[^|]+)*)` \| ([^|]+) \|$",
                    (ROOT / "docs/reference/grammar.md").read_text("utf-8")
                    .split("| fault |")[1], re.M)  # fmt: skip


def fences(page: pathlib.Path) -> list[tuple[str, int, str]]:
    """Each fenced block of a page: its language, the number of lines before it, and its text."""
    text = page.read_text("utf-8")
    found = re.finditer(r"^([ \t>]*)(```+|~~~+)(.*)\n((?:.*\n)*?)\1\2[ \t]*$", text, re.M)
    return [
        (match[3].strip(), text[: match.start(4)].count("\n"), textwrap.dedent(match[4]))
        for match in found
    ]


def blocks(page: pathlib.Path, language: str) -> list[tuple[int, str]]:
    """Each block of a language: the number of lines before it, and its text."""
    return [(line, text) for name, line, text in fences(page) if name == language]


def gpus() -> int:
    torch = pytest.importorskip("torch")
    return torch.cuda.device_count()


def is_here(what: str) -> bool:
    """Whether this machine has what a block needs: GPUs, or a package by its name."""
    return gpus() >= GPUS[what] if what in GPUS else find_spec(what) is not None


def run(page: pathlib.Path) -> None:
    """A page as a reader pastes it: one block after the other, into a namespace without names."""
    namespace = {"__name__": "__main__"}
    for line, code in blocks(page, "python"):
        needs = NEEDS.match(code)
        if needs is None or is_here(needs[1]):
            exec(compile("\n" * line + code, str(page), "exec"), namespace)


@functools.cache
def attributes() -> set[str]:
    """What `import mercer` alone brings."""
    code = "import mercer; print(*vars(mercer))"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


def modules_not_imported(code: str) -> set[str]:
    """Modules of mercer that a page uses, and that only another page's import has brought."""
    nodes = list(ast.walk(ast.parse(code)))
    imports = [name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    sources = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    paths = [*(name.name for name in imports), *sources]
    imported = {path.split(".")[1] for path in paths if path.startswith("mercer.")}
    names = {name.asname or "mercer" for name in imports if name.name.split(".")[0] == "mercer"}
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in names
    }
    return {name for name in used - imported - attributes() if find_spec(f"mercer.{name}")}


def anchors(page: pathlib.Path) -> set[str]:
    """What links may name of a page: its headings, as GitHub and MyST write them."""
    headings = re.findall(r"^#{1,3} (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def source(page: pathlib.Path) -> pathlib.Path:
    """The file that a page of the gallery is made from; any other is written by hand."""
    if page.parent != ROOT / "docs/gallery":
        return page
    name = "GALLERY_HEADER.rst" if page.stem == "index" else f"{page.stem}.py"
    return ROOT / "examples/gallery" / name


def missing(page: pathlib.Path) -> list[str]:
    """Links of a page to pages or headings that are not there."""
    text = page.read_text("utf-8")
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([\w-]+))?\)", text)
    links += [
        (path, "") for path in re.findall(r'<(?:img|a)[^>]* (?:src|href)="(?!\w+:)([^"#]+)', text)
    ]
    homes = [
        (source((page.parent / path).resolve()) if path else page, anchor) for path, anchor in links
    ]
    return [
        f"{home.name}#{anchor}"
        for home, anchor in homes
        if not home.exists() or (anchor and home.suffix == ".md" and anchor not in anchors(home))
    ]


def named(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.stem not in OF_OTHERS and blocks(page, "python")],
    ids=named,
)
def test_python(page, capsys, tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    try:
        run(page)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_have_a_language_and_markers_are_known(page):
    for language, line, text in fences(page):
        assert language in LANGUAGES or language.startswith("{"), f"line {line}: {language}"
        assert language or not re.search(r"^import |^from \w+ import ", text, re.M), f"line {line}"
    for line, code in blocks(page, "python"):
        needs = NEEDS.match(code)
        assert (needs is not None) == bool(re.search(r"^ *# *[Nn]eeds? ", code, re.M)), (
            f"line {line}"
        )
        use = "" if needs is None else r"cuda|sm_" if needs[1] in GPUS else f"import {needs[1]}"
        assert re.search(use, code), f"line {line} needs no {needs[1]}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pages_import_the_modules_that_they_use(page):
    assert modules_not_imported("".join(code for _, code in blocks(page, "python"))) == set()


def test_pages_that_do_not_run_by_themselves_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "1. A list:\n\n   ```python\n   x = 1\n   ```\n\n```python\nmc.cdist(x)\n```\n", "utf-8"
    )
    assert [line for line, _ in blocks(page, "python")] == [3, 7]
    with pytest.raises(NameError):
        run(page)
    page.write_text("```python\n# Needs an NVIDIA GPU.\nmc.cdist(x, device='cuda')\n```\n", "utf-8")
    if gpus() == 0:
        run(page)
    page.write_text("```python\nmc.cdist(x)\n```\n", "utf-8")
    with pytest.raises(NameError):
        run(page)
    assert modules_not_imported("import mercer as mc\nmc.models.KernelRidge()") == {"models"}
    assert modules_not_imported("import mercer.models\nmercer.models.MMD()") == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_explain(page, capsys):
    for _, text in blocks(page, "sh"):
        for line in text.splitlines():
            if line.startswith("mercer explain"):
                assert main(shlex.split(line, comments=True)[1:]) == 0


def test_commands(capsys, tmp_path, monkeypatch):
    """Files of the page's Python, then each of its lines."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/guide/command_line.md"
    run(page)
    for _, text in blocks(page, "sh"):
        for line in text.splitlines():
            assert main(shlex.split(line)[1:]) == 0, line
    assert blocks(page, "text")[0][1].splitlines()[0] in capsys.readouterr().out


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_faults_of_the_grammar(text, words):
    for alternative in text.split("`, `"):
        with pytest.raises(ValueError, match=re.escape(words.strip())):
            mc.parse(alternative)


def test_faults_are_found():
    assert len(FAULTS) >= 10


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_links(page):
    assert missing(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n[a](page.md#a-page), [b](#b), [c](c.md), [d](https://d.e)\n"
        '<img src="page.md" alt="e"> <img alt="e" src="e.png"> <a href="https://d.e">f</a>\n',
        "utf-8",
    )
    assert missing(page) == ["page.md#b", "c.md#", "e.png#"]
    assert not source(ROOT / "docs/gallery/nothing.rst").exists()


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module):
    try:
        names = set(importlib.import_module(module).__all__)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    page = (ROOT / "docs/reference/index.md").read_text("utf-8")
    shown = re.findall(r"^\.\. auto\w+:: ([\w.]+)", page, re.M)
    written = [name.removeprefix(f"{module}.") for name in re.findall(r"``([\w.]+)``", page)]
    zoo = set(mc.zoo.__all__) if module == "mercer" else set()
    assert names - zoo - {name.rpartition(".")[2] for name in shown} - set(written) == set()


@functools.cache
def sources(folder: str) -> list[pathlib.Path]:
    """Files with comments in a folder of the checkout; two tests of tools make up paths."""
    return [
        path
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SOURCES
        and "__pycache__" not in path.parts
        and path.name not in ("test_tools.py", "test_tidy.py")
    ]


def lost(text: str) -> set[str]:
    """Paths that a text names and that the checkout lacks; a name without a suffix may have any."""
    return {
        name
        for name in FILES.findall(text)
        if not any((ROOT / base / name).exists() for base in BASES)
        and ("." in name or not any(any(ROOT.glob(f"{base}/{name}.*")) for base in BASES[1:]))
    }


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_files_that_pages_name(page):
    assert lost(page.read_text("utf-8")) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_that_comments_name(folder):
    found = {named(path): lost(path.read_text("utf-8")) for path in sources(folder)}
    assert {path: names for path, names in found.items() if names} == {}


def not_made(text: str) -> set[str]:
    """Targets of make that a text names and that the Makefile lacks."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.M))
    calls = re.findall(r"(?:`|^)make((?:\s[a-z][\w-]*)+)(?:`|\s+#|$)", text, re.M)
    return {target for call in calls for target in call.split()} - targets


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_targets_that_pages_name(page):
    assert not_made(page.read_text("utf-8")) == set()


def test_targets_that_are_not_there_are_found():
    text = "`make test lint gone`, `make\nwheels`\nmake demo   # a map\nmake lost\n"
    assert not_made(text) == {"gone", "lost"}


def test_files_that_are_not_there_are_found():
    gone = {"core/" + "nvrtc", "src/ir/" + "gone.h", "tools/" + "gone.py"}
    there = "`src/core/devices`, core/devices/nvrtc, plan/gpu/ways.h, tests/unit/ir, lower_*.cpp"
    assert lost(f"{there}, {', '.join(gone)}") == gone


@pytest.mark.parametrize("folder", FOLDERS)
def test_pages_that_comments_name(folder):
    found = {name for path in sources(folder) for name in NAMED.findall(path.read_text("utf-8"))}
    assert {name for name in found if not (ROOT / name).exists()} == set()


def test_every_public_header_has_its_page():
    headers = {path.stem for path in (ROOT / "include" / "mercer").glob("*.h")} - {"mercer"}
    assert headers == {path.stem for path in (ROOT / "docs" / "reference" / "cpp").glob("*.md")}
