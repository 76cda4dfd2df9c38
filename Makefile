# Everything a checkout offers, from a bare Debian machine on. `make help` lists it.
#
# The Python package and the C++ tests share one build folder, so each source is compiled once. Stamp files say what has
# been done: a second `make demo` starts at once.

PYTHON ?= python3
BUILD  := build/release
STORE  ?=
SECONDS ?= 3600
SEED    ?= $(shell date +%s)000
FUZZ    ?=
CASES   ?= 10000
BASE    ?=
ALL     ?=
KERNELS ?= all
VENV   := .venv
PY     := $(VENV)/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SYSTEM    := build/.stamp-system
REQ_BUILD := $(VENV)/.stamp-build
REQ_TEST  := $(VENV)/.stamp-test
REQ_DEMO  := $(VENV)/.stamp-demo
REQ_DOCS  := $(VENV)/.stamp-docs
REQ_LINT  := $(VENV)/.stamp-lint
REQ_CHECKS := $(VENV)/.stamp-checks
PACKAGE   := $(BUILD)/.stamp-package

SOURCES := CMakeLists.txt pyproject.toml $(shell find cmake include src python/mercer python/src -type f \
             -not -name '*.pyc' -not -path '*/__pycache__/*')

.DEFAULT_GOAL := help
.PHONY: help setup package demo test test-quick test-all test-cpp test-python fuzz fuzz-torch bench bench-calls docs \
  lint check-format tidy check-commits format stubs asan tsan coverage coverage-python coverage-cpp install-example \
  deb check-deb wheels check-wheels check-package clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(SYSTEM) $(REQ_TEST)  ## system packages and the Python environment .venv

$(SYSTEM): tools/setup.sh tools/debian-packages.txt
	PYTHON=$(PYTHON) tools/setup.sh
	@mkdir -p $(@D) && touch $@

$(VENV)/pyvenv.cfg: | $(SYSTEM)
	$(PYTHON) -m venv $(VENV)

$(REQ_BUILD): requirements/build.txt | $(VENV)/pyvenv.cfg
	$(PY) -m pip install -q -r $<
	@touch $@
$(REQ_TEST): requirements/test.txt requirements/demo.txt $(REQ_BUILD)
	$(PY) -m pip install -q -r $<
	@touch $@
# On a machine with a GPU the demo shows its times too, by PyTorch's events.
$(REQ_DEMO): requirements/demo.txt $(if $(shell command -v nvidia-smi),$(REQ_TEST),$(REQ_BUILD))
	$(PY) -m pip install -q -r $<
	@touch $@
$(REQ_DOCS): requirements/docs.txt $(REQ_TEST)
	$(PY) -m pip install -q -r $<
	@touch $@
$(REQ_LINT): requirements/lint.txt | $(VENV)/pyvenv.cfg
	$(PY) -m pip install -q -r $<
	@touch $@
$(REQ_CHECKS): requirements/checks.txt $(REQ_TEST)
	$(PY) -m pip install -q -r $<
	@touch $@

# What the package is built with; a later build with the same words in the same folder compiles nothing anew. Benchmarks,
# which a release leaves out, come along.
SETTINGS := build-dir=$(BUILD) cmake.define.MERCER_TESTS=ON cmake.define.MERCER_STORE_ARCHITECTURES=$(STORE)

package: $(PACKAGE)  ## build the library and install the Python package into .venv

$(PACKAGE): $(SOURCES) $(SYSTEM) $(REQ_BUILD)
	@echo "building the library and the Python module; the first time takes minutes"
	$(PY) -m pip install -q --no-build-isolation --no-deps --force-reinstall \
	  '--config-settings=sdist.exclude=*.so;*.pyc' --config-settings=sdist.include=/python/mercer/benchmarks/ \
	  $(SETTINGS:%=--config-settings=%) .
	@touch $@

demo: $(PACKAGE) $(REQ_DEMO)  ## a tour on this machine, a minute or so
	$(PY) examples/demo.py

# Tests marked or labelled long are of test-all alone, those marked or labelled quick of all three.
test-quick: CTEST_TIER := -L quick
test-quick: PYTEST_TIER := -m quick
test-quick: test-cpp test-python  ## C++ and Python tests of two minutes
test: test-cpp test-python  ## C++ and Python tests but for the long ones, 12 minutes on two cores
test-all: CTEST_TIER :=
test-all: PYTEST_TIER :=
test-all: test-cpp test-python  ## all C++ and Python tests

CTEST_TIER  = -LE long
PYTEST_TIER = -m "not long"

test-cpp: $(PACKAGE) $(REQ_TEST)  ## the C++ tests of make test
	cmake --build $(BUILD)
	ctest --test-dir $(BUILD) --output-on-failure --parallel $(shell nproc) $(CTEST_TIER)
	@grep -hoE '^\[  SKIPPED \] .* \(.*\)|^CUDA: skipped, .*' $(BUILD)/Testing/Temporary/LastTest.log || true

# A process of pytest computes on its share of the processors: threads that wait for one another across processes, and
# spin, take many times as long.
SHARE  := $(shell n=$$(nproc); echo $$((n > 3 ? n / 2 : 1)))
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(SHARE)} $(PY)

test-python: $(PACKAGE) $(REQ_TEST)  ## the Python tests of make test
	$(PYTEST) -m pytest -n 2 --dist worksteal $(PYTEST_TIER)

fuzz: $(PACKAGE)  ## random calls for SECONDS from SEED on, a failure as a line that makes it again; FUZZ: more options
	cmake --build $(BUILD) --target fuzz_calls
	$(BUILD)/fuzz_calls --seed $(SEED) --seconds $(SECONDS) --jobs $(shell nproc) $(FUZZ)

fuzz-torch: $(PACKAGE) $(REQ_TEST)  ## CASES random nests of PyTorch's transforms from SEED on
	MERCER_FUZZ_SEED=$(SEED) MERCER_FUZZ_CASES=$(CASES) $(PY) -m pytest -q -n $(shell nproc) --maxfail 5 \
	  python/tests/test_torch_fuzz.py

bench: $(PACKAGE) $(REQ_TEST)  ## throughput against other libraries, on a GPU too; kept in bench/results/runs
	$(PY) -m mercer bench --keep

bench-calls: $(PACKAGE)  ## microseconds of a call on tiny arrays, from C++ and from C
	cmake --build $(BUILD) --target bench_calls
	MERCER_THREADS=1 $(BUILD)/bench_calls

docs: $(PACKAGE) $(REQ_DOCS)  ## the documentation as HTML, into docs/_build/html
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build/html

lint: $(REQ_TEST)  ## style of the Python code, order of the layers, size of the files, one version
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) tools/check_layers.py
	$(PY) tools/check_sizes.py
	$(PY) tools/release.py --agree

check-format: $(REQ_LINT)  ## lines of C++ that changed since BASE (where HEAD left main), by clang-format
	$(PY) tools/check_format.py $(BASE)

tidy: $(PACKAGE) $(REQ_LINT)  ## clang-tidy finds nothing new in C++ files that changed since BASE (ALL=1: in all)
	$(PY) tools/tidy.py $(if $(ALL),--all,$(BASE))

check-commits:  ## subjects of the commits that main has not
	$(PYTHON) tools/check_commits.py

format: $(REQ_TEST) $(REQ_LINT)  ## rewrite the Python code, and the changed lines of C++, in the house style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(PY) tools/check_format.py --fix $(BASE)

stubs: $(PACKAGE) $(REQ_TEST)  ## write the type stubs and the verbs anew after a change of the bindings
	$(PY) tools/make_stubs.py
	$(PY) tools/make_verbs.py

asan: $(SYSTEM)  ## the C++ tests under the address and undefined-behaviour sanitizers
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan

coverage: coverage-python coverage-cpp  ## lines that tests reach, a table of folders: of Python and of C++ (no GPU's)

coverage-python: $(PACKAGE) $(REQ_TEST) $(REQ_CHECKS)  ## of make test-python
	@mkdir -p build/coverage && rm -f build/coverage/python*
	$(PYTEST) -m coverage run -m pytest -n 2 --dist worksteal $(PYTEST_TIER)
	$(PY) -m coverage combine -q
	$(PY) -m coverage json -q -o build/coverage/python.json
	$(PY) tools/coverage_table.py build/coverage/python.json

coverage-cpp: $(SYSTEM) $(REQ_CHECKS)  ## of the unit tests (label unit), in a build of its own
	cmake --preset coverage
	cmake --build --preset coverage
	find build/coverage -name '*.gcda' -delete
	ctest --preset coverage
	$(VENV)/bin/gcovr --root . --object-directory build/coverage --filter src/ --filter include/ -j $(shell nproc) \
	  --gcov-exclude-directories '.*CompilerId.*' --gcov-ignore-parse-errors=all \
	  --gcov-ignore-errors=no_working_dir_found --json-summary build/coverage/cpp.json build/coverage
	$(PY) tools/coverage_table.py build/coverage/cpp.json

tsan: $(SYSTEM)  ## what several threads do at once, under the thread sanitizer
	cmake --preset tsan
	cmake --build --preset tsan
	ctest --preset tsan

PREFIX := $(CURDIR)/build/prefix

install-example: $(PACKAGE)  ## install the libraries into build/prefix, then build and run examples/cpp and examples/c
	cmake --build $(BUILD) --target mercer mercer_static mercer_fastkron
	cmake --install $(BUILD) --component cpp --prefix $(PREFIX)
	$(PY) tools/check_symbols.py $(PREFIX)
	$(PY) tools/check_headers.py $(PREFIX) docs/guide/*.md docs/reference/*.md
	cmake -S examples/cpp -B build/example -G Ninja -DCMAKE_PREFIX_PATH=$(PREFIX)
	cmake --build build/example
	ctest --test-dir build/example --output-on-failure
	PKG_CONFIG_PATH=$$(dirname $$(find $(PREFIX) -name mercer.pc)) && export PKG_CONFIG_PATH && \
	  $(CXX) -std=c++20 examples/cpp/kronecker.cpp -o build/example/by_pkg_config \
	    $$(pkg-config --cflags --libs mercer) -Wl,-rpath,$$(pkg-config --variable=libdir mercer)
	build/example/by_pkg_config
	cmake --build $(BUILD) --target emulated_driver emulated_nvrtc
	LD_LIBRARY_PATH=$(BUILD)/emulator MERCER_NVRTC=$(BUILD)/emulator/libnvrtc.so.13 MERCER_CACHE_DIR=off \
	  build/example/cuda_stream | grep "on a GPU.*right"
	cmake -S examples/c -B build/example_c -G Ninja -DCMAKE_PREFIX_PATH=$(PREFIX)
	cmake --build build/example_c
	build/example_c/grid
	build/example_c/fastkron

deb: $(PACKAGE)  ## the C++ library as a package for Debian, into build/deb
	cmake --build $(BUILD) --target mercer mercer_static mercer_fastkron
	rm -f build/deb/*.deb
	cpack --config $(BUILD)/CPackConfig.cmake -B build/deb

check-deb: deb  ## its fields, files and dependencies; programs that link with what it unpacks
	tools/check_deb.sh build/deb/libmercer_*.deb

# KERNELS: GPU architectures whose kernels come along, all of cmake/cuda_store.txt where nothing is said.
wheels: $(SYSTEM)  ## the sdist and manylinux wheels into dist/, with Zig's compiler; KERNELS= for no GPU kernels
	$(PYTHON) tools/make_wheels.py --kernels "$(KERNELS)"

check-wheels:  ## dist/: contents, tags, symbols; wheels and sdist in a fresh environment of each Python at hand
	build/wheels/tools/bin/python tools/check_wheels.py

check-package: $(PACKAGE)  ## in seconds: the sdist's contents, and a wheel of this build in a fresh environment
	$(PY) tools/check_wheels.py --quick $(SETTINGS)

clean:  ## remove everything that was built, .venv included
	rm -rf build dist docs/_build docs/gallery docs/sg_execution_times.rst $(VENV)
