"""What the engine says reaches Python's logging, from any thread, once."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys
import threading

import mercer as mc
import pytest
from mercer import _mercer

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "MERCER_LOG"}
PACKAGE = str(pathlib.Path(mc.__file__).resolve().parents[1])


def run(program, **environment):
    """What a process of its own prints to stderr."""
    known = {**ENVIRONMENT, "PYTHONPATH": PACKAGE, **environment}
    found = subprocess.run(
        [sys.executable, "-c", program], env=known, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    return found.stderr


@pytest.fixture
def records():
    """The records that the logger's own handler gets."""
    logger, found = logging.getLogger("mercer"), []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append(record)

    handler = Handler()
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_levels_are_those_of_logging(records):
    logging.getLogger("mercer").setLevel(logging.DEBUG)
    for level in ("error", "warning", "info", "debug"):
        _mercer.say(level, f"{level} {{}} %s")
    assert [(r.levelno, r.getMessage()) for r in records] == [
        (logging.ERROR, "error {} %s"), (logging.WARNING, "warning {} %s"),
        (logging.INFO, "info {} %s"), (logging.DEBUG, "debug {} %s"),
    ]  # fmt: skip
    assert {r.name for r in records} == {"mercer"}
    assert records[0].threadName == threading.current_thread().name


def test_the_level_of_the_logger_is_the_engines(records):
    logger = logging.getLogger("mercer")
    assert _mercer.log_level() == "warning"
    logger.setLevel("INFO")
    assert _mercer.log_level() == "info"
    _mercer.say("debug", "no")
    _mercer.say("info", "yes")
    logger.setLevel(logging.ERROR)
    assert _mercer.log_level() == "warning"  # of MERCER_LOG, to stderr
    logger.setLevel(logging.NOTSET)
    assert _mercer.log_level() == "warning"
    assert [r.getMessage() for r in records] == ["yes"]


def test_records_say_when_and_where(records):
    import time

    before = time.time()
    thread = threading.Thread(target=_mercer.say, args=("warning", "there"), name="elsewhere")
    thread.start()
    thread.join()
    for _ in range(1000):  # the main thread fetches it at its next bytecode
        if records:
            break
        time.sleep(0.001)
    assert before <= records[0].created <= time.time()
    assert records[0].thread == thread.ident


def test_a_record_with_a_handler_is_printed_once():
    program = (
        "import logging, mercer\nfrom mercer import _mercer\n"
        "{}\n_mercer.say('warning', 'W')\n_mercer.say('info', 'I')"
    )
    basic = "logging.basicConfig(format='%(name)s/%(levelname)s/%(message)s'{})"
    assert run(program.format("")) == "mercer: warning: W\n"
    assert run(program.format(basic.format(""))) == "mercer/WARNING/W\n"
    # Where MERCER_LOG asks for more than handlers take, the rest is printed as ever.
    found = run(program.format(basic.format("")), MERCER_LOG="info")
    assert found == "mercer/WARNING/W\nmercer: info: I\n"
    quiet = "logging.getLogger('mercer').setLevel(logging.ERROR)"
    assert run(program.format(quiet)) == ""
    assert run(program.format(quiet), MERCER_LOG="warning") == "mercer: warning: W\n"
    assert run(program.format(""), MERCER_LOG="off") == ""


def test_a_level_that_was_set_before_the_import_holds():
    program = (
        "import logging\nlogging.getLogger('mercer').setLevel(logging.DEBUG)\n"
        "logging.basicConfig(format='%(message)s')\nimport mercer\n"
        "mercer._mercer.say('debug', 'D')"
    )
    assert run(program).splitlines()[-1] == "D"


def test_many_threads_and_the_end_of_the_interpreter():
    """Threads log while Python computes, forks and ends; nothing waits for another."""
    program = (
        "import logging, threading, os, sys\nimport mercer\nfrom mercer import _mercer\n"
        "kept = []\n"
        "class Handler(logging.Handler):\n"
        "    def emit(self, record): kept.append(record.getMessage())\n"
        "logging.getLogger('mercer').addHandler(Handler())\n"
        "def say(n):\n"
        "    for i in range(200): _mercer.say('warning', f'{n} {i}')\n"
        "threads = [threading.Thread(target=say, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]\n"
        "[t.join() for t in threads]\n"
        "for _ in range(1000): pass\n"
        "assert len(kept) == 800, len(kept)\n"
        "for n in range(4):\n"
        "    assert [k for k in kept if k[0] == str(n)] == [f'{n} {i}' for i in range(200)]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    _mercer.say('warning', 'child')\n"
        "    os._exit(0 if kept[800:] == ['child'] else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "threading.Thread(target=say, args=(9,), daemon=True).start()\n"
    )
    assert run(program) == ""


def test_an_error_of_a_handler_is_loggings_own(records, capsys):
    class Broken(logging.Handler):
        def emit(self, record):
            try:
                raise RuntimeError("full")
            except RuntimeError:
                self.handleError(record)

    handler = Broken()
    logging.getLogger("mercer").addHandler(handler)
    try:
        _mercer.say("warning", "W")
    finally:
        logging.getLogger("mercer").removeHandler(handler)
    assert "RuntimeError: full" in capsys.readouterr().err
    assert mc.gauss() == mc.gauss()


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="must be off, error, warning, info or debug"):
        _mercer.set_log_level("loud")


NO_TEXT = os.fsencode("caf\udce9")  # Latin-1, in names of files and values of variables


def run_bytes(*arguments, **environment):
    """What a process of its own prints, some of the variables being bytes."""
    known = {**ENVIRONMENT, "PYTHONPATH": PACKAGE, **environment}
    known = {os.fsencode(name): os.fsencode(value) for name, value in known.items()}
    command = [sys.executable, *arguments]
    found = subprocess.run(command, env=known, capture_output=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return found


def test_bytes_that_are_not_utf8_are_replaced_in_messages():
    """A folder's name is bytes: what is said about it must not raise out of the call."""
    program = (
        "import logging, mercer as mc, numpy as np\n"
        "logging.basicConfig(format='%(levelname)s/%(message)s')\n"
        "mc.kron.tune(np.ones((1, 4)), [np.eye(2)] * 2)"
    )
    found = run_bytes("-c", program, MERCER_CACHE_DIR=b"/proc/" + NO_TEXT)
    assert "WARNING/cache: /proc/caf\ufffd cannot be made" in found.stderr.decode()


def test_bytes_that_are_not_utf8_are_replaced_in_errors():
    program = (
        "import mercer as mc, numpy as np\n"
        "try: mc.cdist(np.zeros((1, 1)), np.zeros((1, 1)))\n"
        "except ValueError as error: print(ascii(str(error)))"
    )
    found = run_bytes("-c", program, MERCER_TARGET=NO_TEXT)
    assert rb'Received "caf\ufffd"' in found.stdout


def test_a_path_that_is_not_utf8_is_pythons(tmp_path):
    folder = os.fsencode(tmp_path) + b"/" + NO_TEXT
    program = (
        "import os, sys, mercer as mc\n"
        "path = mc._mercer.cache_path()\n"
        "mc._mercer.add_library_folder(path)\n"
        "mc.info()\n"
        "sys.stdout.buffer.write(os.fsencode(path))"
    )
    assert run_bytes("-c", program, MERCER_CACHE_DIR=folder).stdout == folder
    found = run_bytes("-m", "mercer", "cache", "path", MERCER_CACHE_DIR=folder)
    assert found.stdout == folder + b"\n"
