"""mercer.compat: drop-in modules under the names of the packages that they replace."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

import mercer.compat

ORIGINAL = "raise AssertionError('the original was imported')"


@pytest.fixture
def python(tmp_path):
    """Runs arguments of Python in a folder that has packages of the original names."""
    for name in mercer.compat.MODULES:
        (tmp_path / f"{name}.py").write_text(ORIGINAL)

    def run(*arguments, code=None):
        if code is not None:
            (tmp_path / "program.py").write_text(textwrap.dedent(code))
        home = pathlib.Path(mercer.compat.__file__).parents[2]
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(home)},
        )

    return run


PROGRAM = """
    import sys
    import torch
    import kermac.linalg
    from kermac import cdist

    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    d = cdist(torch.ones(2, 3, device=where), torch.zeros(4, 3, device=where), p=1)
    print(kermac.__name__, kermac.linalg.__name__, d.flatten().tolist(), sys.argv[1:], __name__)
"""
ANSWER = f"mercer.compat.kermac mercer.compat.kermac.linalg {[3.0] * 8}"
# A package that needs no PyTorch, which takes long to import.
SHORT = """
    import sys
    import mm_ptx.stack_ptx
    from mm_ptx import ptx_inject

    print(mm_ptx.__name__, mm_ptx.stack_ptx.__name__, ptx_inject.__name__, sys.argv[1:], __name__)
"""
INSTALL = """
    import mercer.compat

    mercer.compat.install("mm_ptx")
"""
NAMES = "mercer.compat.mm_ptx mercer.compat.mm_ptx.stack_ptx mercer.compat.mm_ptx.ptx_inject"


def test_install_goes_before_the_path(python):
    result = python("program.py", code=INSTALL + SHORT)
    assert result.stdout == f"{NAMES} [] __main__\n", result.stderr


def test_run_takes_a_script_and_its_arguments(python):
    result = python("-m", "mercer.compat", "run", "program.py", "--device", "a b", code=PROGRAM)
    assert result.stdout == f"{ANSWER} ['--device', 'a b'] __main__\n", result.stderr


def test_run_takes_a_module(python):
    words = ("-m", "mercer.compat", "run", "--packages", "mm_ptx", "-m", "program", "1")
    result = python(*words, code=SHORT)
    assert result.stdout == f"{NAMES} ['1'] __main__\n", result.stderr


def test_refusals(python):
    with pytest.raises(ValueError, match="the drop-in modules are kermac"):
        mercer.compat.install("kermac2")
    result = python("-m", "mercer.compat", "run", "--packages", "numpy", "program.py", code="")
    assert result.returncode == 1
    assert "the drop-in modules are" in result.stderr
    result = python("-m", "mercer.compat", "run")
    assert "a script must be given" in result.stderr


def test_an_original_that_was_imported_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "kermac.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kermac", raising=False)
    original = __import__("kermac")
    try:
        with pytest.raises(ValueError, match=r"must not have been imported before.*kermac\.py"):
            mercer.compat.install("kermac")
        assert sys.modules["kermac"] is original
    finally:
        del sys.modules["kermac"]


def test_mercer_imports_neither_torch_nor_the_modules():
    code = "import sys, mercer, mercer.compat; print(sorted({'torch', 'kermac'} & {*sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


ON_CUDA = """
    import sys
    import numpy as np
    import torch
    import kermac.linalg
    from kernel_tools.linalg import cusolver_eigh
    from pyfastkron.fastkrontorch import gemkm

    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.mem_get_info()[0] > 0
    device = torch.device("cuda")
    assert torch.device(device).type == "cuda"
    torch.cuda.set_device(device)
    torch.cuda.manual_seed_all(0)
    generator = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(5, 3, device="cuda:0", generator=generator, pin_memory=False)
    z = torch.zeros(4, 3).cuda().to("cuda", torch.float32)
    weight = torch.nn.Linear(3, 2).to(device).cuda().weight.detach()
    with torch.device("cuda"):
        one = torch.ones(2, 3)
    host, array = torch.zeros(3), np.zeros(3)
    there = host.cuda()
    there += 1
    back, again = there.cpu(), there.to("cpu")
    for tensor in (there, host.to(device), torch.as_tensor(array, device="cuda")):
        tensor += 1
    assert [t.sum() for t in (host, array, there, back, again)] == [0, 0, 6, 3, 3]
    torch.set_default_device("cuda")
    two = torch.ones(2, 3)
    torch.set_default_device(None)
    torch.save(two, "two.pt")
    two = torch.load("two.pt", map_location="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.current_stream())
        timer = kermac.CudaTimer()
        timer.start()
        results = [kermac.cdist(points, z) for points in (x, weight, one, two)]
        assert timer.stop() >= 0
    assert kermac.cdist(x, z, out=torch.empty(5, 4, device=device)).shape == (5, 4)
    assert kermac.cdist_grad(z[:3], z, x, z).shape == (1, 5, 4, 3)
    system = torch.eye(3, device=device)[None]
    assert kermac.linalg.solve_lu(system, system)[0].equal(system)
    assert gemkm(x, [torch.eye(3, device=device)], 1.0, 1.0, x).equal(2 * x)
    values, vectors = cusolver_eigh(system[0])
    assert values.tolist() == [1, 1, 1]
    x.record_stream(stream)
    torch.cuda.synchronize()
    print({str(result.device) for result in results}, {str(t.device) for t in (x, z, weight)})
    print(torch.allclose(results[0][0], torch.cdist(x, z)), file=sys.stderr)
"""


def test_cuda_may_be_the_host(python):
    words = ("-m", "mercer.compat", "run", "--device", "cpu", "program.py")
    result = python(*words, code=ON_CUDA)
    assert result.stdout == "{'cpu'} {'cpu'}\n", result.stderr
    assert result.stderr.splitlines() == ['mercer.compat: "cuda" is the CPU in this run', "True"]


def test_the_host_stands_for_cuda_within_its_context_alone():
    import torch
    from mercer.compat._host import cuda_on_host

    names = [(torch.cuda, "is_available"), (torch, "Generator"), (torch.Tensor, "record_stream")]
    before = [getattr(home, name) for home, name in names]
    with cuda_on_host():
        assert torch.zeros(1, device="cuda").device.type == "cpu"
    with pytest.raises(ZeroDivisionError), cuda_on_host():
        raise ZeroDivisionError
    assert before == [getattr(home, name) for home, name in names]
