"""The checks of tools/ find what they look for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT, program

pytestmark = pytest.mark.quick

TOOLS = ROOT / "tools"


def check_layers(folder):
    return subprocess.run(
        [sys.executable, TOOLS / "check_layers.py", folder], capture_output=True, text=True
    )


def test_layers(tmp_path):
    (tmp_path / "ir").mkdir()
    source = tmp_path / "ir" / "expr.cpp"
    source.write_text('#include "ir/expr.h"\n#include "core/error.h"\n#include <plan/no.h>\n')
    assert check_layers(tmp_path).returncode == 0
    source.write_text('#include "core/error.h"\n#include "plan/planner.h"\n')
    found = check_layers(tmp_path)
    assert found.returncode == 1
    assert 'expr.cpp:2: ir/ includes "plan/planner.h", but plan/ lies to its right' in found.stdout


def test_includes_are_paths_from_src_on(tmp_path):
    gpu = tmp_path / "plan" / "gpu"
    gpu.mkdir(parents=True)
    (gpu / "plan.h").write_text("")
    (gpu / "field.h").write_text('#include "plan.h"\n#include "xbyak.h"\n')
    (tmp_path / "plan" / "ways.h").write_text('#include "gpu/plan.h"\n')
    found = check_layers(tmp_path).stdout.splitlines()
    assert len(found) == 2
    assert 'field.h:1: "plan.h" is a path from the file\'s own folder' in found[0]
    assert 'ways.h:1: "gpu/plan.h" is a path from the file\'s own folder' in found[1]


def test_rooms_of_a_stage(tmp_path):
    forms, gpu, cpu = (tmp_path / "plan" / room for room in ("forms", "gpu", "cpu"))
    for folder in (forms, gpu / "costs", cpu):
        folder.mkdir(parents=True)
    (tmp_path / "plan" / "ways.h").write_text("")
    (gpu / "costs" / "costs.h").write_text('#include "plan/gpu/plan.h"\n')
    (gpu / "plan.h").write_text('#include "plan/forms/sides.h"\n#include "plan/ways.h"\n')
    (forms / "sides.h").write_text('#include "core/error.h"\n#include "plan/forms/other.h"\n')
    assert check_layers(tmp_path).returncode == 0
    (tmp_path / "plan" / "ways.h").write_text('#include "plan/gpu/plan.h"\n')
    (forms / "sides.h").write_text('#include "plan/gpu/costs/costs.h"\n')
    (cpu / "planner.h").write_text('#include "plan/gpu/plan.h"\n')
    (tmp_path / "plan" / "attic").mkdir()
    (tmp_path / "plan" / "attic" / "old.h").write_text('#include "core/error.h"\n')
    found = check_layers(tmp_path).stdout
    assert 'ways.h:1: plan/ includes "plan/gpu/plan.h", but plan/gpu/ lies to its right' in found
    assert 'sides.h:1: plan/forms/ includes "plan/gpu/costs/costs.h", but plan/gpu/' in found
    assert 'planner.h:1: plan/cpu/ includes "plan/gpu/plan.h", but plan/gpu/ is its neigh' in found
    assert "old.h:1: plan/attic/ is no room of the table" in found
    assert len(found.splitlines()) == 4


def test_device_text_is_seen_from_codegen_on(tmp_path):
    kernels = tmp_path / "kernels" / "cuda"
    for folder in (kernels, tmp_path / "plan", tmp_path / "codegen", tmp_path / "backend"):
        folder.mkdir(parents=True)
    (kernels / "arguments.h").write_text("")
    (kernels / "tile.cuh").write_text('#include "arguments.h"\n')
    (kernels / "pairs").mkdir()
    (kernels / "pairs" / "fold.cuh").write_text('#include "tile.cuh"\n')
    (tmp_path / "codegen" / "source.cpp").write_text('#include "kernels/cuda/arguments.h"\n')
    (tmp_path / "backend" / "tile.cpp").write_text('#include "kernels/cuda/arguments.h"\n')
    assert check_layers(tmp_path).returncode == 0
    (kernels / "tile.cuh").write_text('#include "core/error.h"\n#include "pairs/fold.cuh"\n')
    (tmp_path / "plan" / "tile.cpp").write_text('#include "kernels/cuda/arguments.h"\n')
    (tmp_path / "backend" / "tile.cpp").write_text('#include "kernels/cuda/tile.cuh"\n')
    found = check_layers(tmp_path)
    assert found.returncode == 1
    assert 'tile.cuh:1: device text includes "core/error.h"' in found.stdout
    assert 'tile.cuh:2: kernels/cuda/ includes "kernels/cuda/pairs/fold.cuh", but' in found.stdout
    assert 'plan/ includes "kernels/cuda/arguments.h"' in found.stdout
    assert 'backend/ includes "kernels/cuda/tile.cuh"' in found.stdout


HEADER = """// namespace not { void in_a_comment(); }
#define MACRO(x) \\
  never(x)
namespace mercer {
namespace kron { struct Options; }
class Kept { public: Kept(int a = {}); int inside() { return 1; } bool operator<(int) const; };
struct Plain { int number = 3; std::function<void(const std::vector<int>&)> call = {}; };
template <class T> T made() { return T(); }
Plain operator+(const Plain& a, const Plain& b);
std::map<int, std::vector<int>> named(const Plain& a = {}, int b = 2);
using Alias = int (*)(int);
namespace linalg { void solve(int a, std::function<void(int)> f = {}); }
}
extern "C" { int mercer_version(void); }
"""


def test_functions_that_a_header_leaves_to_the_library(tmp_path):
    header = tmp_path / "header.h"
    header.write_text(HEADER, "utf-8")
    members = {"Kept::Kept", "Kept::operator<", "operator+", "named", "linalg::solve"}
    assert program("tools", "check_symbols").declared(header) == {
        f"mercer::{name}" for name in members
    } | {"mercer_version"}
