"""The Python versions of this machine that Mercer supports."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

VERSIONS = tuple(f"3.{minor}" for minor in range(10, 15))


def _version(python: str) -> str:
    """Its version, as "3.12", or "" where it does not run or is built without the GIL."""
    code = (
        "import sys, sysconfig; t = sysconfig.get_config_var('Py_GIL_DISABLED');"
        "print('' if t else '%d.%d' % sys.version_info[:2])"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def supported() -> dict[str, str]:
    """An interpreter for each version found: MERCER_PYTHONS (paths, set apart by spaces), else
    pythonX.Y on the PATH and in the folders of pyenv."""
    named = os.environ.get("MERCER_PYTHONS", "").split()
    folder = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = {}
    for version in VERSIONS:
        pyenv = sorted(folder.glob(f"{version}.*/bin/python"))
        places = named or [shutil.which(f"python{version}"), *map(str, reversed(pyenv))]
        for python in filter(None, places):
            if _version(python) == version:
                found[version] = python
                break
    return found
