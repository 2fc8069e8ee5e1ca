# One target for each task of the project. `make` lists the targets. A target first sets up its requirements: the Debian
# packages and the Python environment of requirements/, then the build. scripts/once compares the contents of files, so
# an unchanged step does not run again.
SHELL := bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# ccache shares object files between build folders with the same flags, such as the folders of the tests and the wheel.
export CXX
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CCACHE_DIR := $(CURDIR)/.cache/ccache
# With a base folder, ccache also finds the object files of another checkout of the same sources.
export CCACHE_BASEDIR := $(CURDIR)
# The precompiled headers of the tests need these settings of ccache.
export CCACHE_SLOPPINESS := pch_defines,time_macros
# The tests find PyTorch's NVRTC in this folder.
export GDPA_SITE_PACKAGES = $(abspath $(wildcard .venv/lib/python3*/site-packages))
# The tests find the oldest supported NVRTC in this folder.
export GDPA_OLDEST_NVRTC = $(abspath $(wildcard .venv-nvrtc/lib/python3*/site-packages/nvidia/cu13/lib))

# The tests of compiled kernels keep what NVRTC and the disassembler made, because most changes leave the kernels as they
# are. `make clean` keeps this folder too.
export GDPA_TEST_KERNELS := $(CURDIR)/.cache/kernels

# With this variable, Python writes no bytecode files, and each process compiles the Python code of PyTorch again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
# A process without tests takes some of another one, so that all processes end at the same time.
PYTEST = $(PYTHON) -m pytest --quiet --numprocesses $$(nproc) --dist worksteal
REPORTS ?= build/reports
TORCH_VERSIONS := 2.11.0 2.15.0
# `make test` runs samples of the long tests. The targets that end in -all run all tests. A sample that has passed runs
# again only after one of its inputs has changed.
CXX_TEST_INPUTS = $(wildcard CMakeLists.txt cmake include src kernels tools tests/cpp tests/gpu tests/emulator examples \
                             requirements)
CTEST = GTEST_OUTPUT=xml:$(abspath $(REPORTS))/ ctest --output-on-failure --parallel $$(nproc)
# With AddressSanitizer's dlopen, NVRTC does not find its second library, which is in the same folder. LD_LIBRARY_PATH
# names this folder. AddressSanitizer before GCC 14 mistakes a block of thread-local variables with an address of 16
# modulo 4096 for a block of an old glibc. It then reads a wrong address and size before the block and crashes at exit.
# intercept_tls_get_addr=0 disables this code.
SANITIZED = ASAN_OPTIONS=intercept_tls_get_addr=0 GDPA_FUZZ_PROBLEMS=300 GDPA_COMPILE_KERNELS=4 \
            LD_LIBRARY_PATH="$(GDPA_SITE_PACKAGES)/nvidia/cu13/lib:$(GDPA_OLDEST_NVRTC)"
CXX_SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.h.in')
PACKAGE_SOURCES = $(wildcard CMakeLists.txt pyproject.toml LICENSE NOTICES.md README.md cmake include src kernels tools torch python)

# scripts/run-steps names the targets that it has made, so that the later steps do not check them again.
MADE ?=
unmade = $(filter-out $(MADE),$(1))

.PHONY: packages gpu-test gpu-record-check mutation help setup build wheel install demo train bench test check test-all lint test-cpp test-cpp-all \
        test-python test-python-all test-sanitize test-sanitize-all configure-sanitize test-wheel test-wheel-all format clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install  ## run, check and time three uses of gdpa on MovieLens 100K; OPTIONS="--help"
	@$(PYTHON) -m gdpa.demo $(OPTIONS)

train: install  ## train a model on MovieLens 100K with gdpa, softmax and mean pooling; OPTIONS="--help"
	@$(PYTHON) -m gdpa.train $(OPTIONS)

test:  ## build, C++ and Python tests, and a bare wheel, with samples of the longest tests
	@scripts/run-steps build/reports/test setup+build install test-cpp test-python+test-wheel

check:  ## lint, and the tests under sanitizers; continuous integration runs it after make test
	@python3 scripts/gpu-record check || echo "make check: warning: the GPU record is incomplete; the following steps need no GPU"
	@scripts/run-steps build/reports/check setup+build lint test-sanitize

test-all:  ## run every check completely; each step is also a target
	@python3 scripts/gpu-record check || echo "make test-all: warning: the GPU record is incomplete; the following steps need no GPU"
	@scripts/run-steps build/reports/all setup+build install lint test-cpp-all test-python-all test-sanitize-all test-wheel-all

packages:
	@scripts/install-system-packages requirements/debian.txt

setup: $(call unmade,packages)  ## install system packages and the Python environments
	@scripts/once .venv/.requirements requirements/python.txt requirements/data.txt -- \
	    scripts/make-environment .venv "-r requirements/python.txt" "--no-deps -r requirements/data.txt"
	@scripts/once .venv-nvrtc/.requirements requirements/nvrtc.txt -- \
	    scripts/make-environment .venv-nvrtc "--no-deps -r requirements/nvrtc.txt"

build: $(call unmade,packages)  ## build the C++ library, command line, tests and examples in build/
	@scripts/once build/.configured -- cmake -G Ninja -S . -B build -DGDPA_DEVELOP=ON
	@cmake --build build

wheel: $(call unmade,setup)  ## build the wheels of gdpa and gdpa-bench in dist/
	@scripts/once dist/.built $(PACKAGE_SOURCES) -- scripts/build-wheel $(PYTHON) dist

install: $(call unmade,wheel)  ## install both wheels into .venv
	@scripts/once .venv/.package dist -- $(PYTHON) -m pip install --quiet --force-reinstall --no-deps dist/*.whl

lint: $(call unmade,setup build)  ## check formatting, the places of names, ruff, mypy and clang-tidy; change nothing
	@$(PYTHON) scripts/check-rooms
	@clang-format-14 --dry-run -Werror $(CXX_SOURCES)
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m ruff format --quiet --check .
	@$(PYTHON) -m mypy
	@scripts/once build/.tidy .clang-tidy include src tools -- scripts/run-clang-tidy build
	@echo "lint: no findings"

test-cpp: $(call unmade,setup build)  ## run the C++ tests and examples, with samples of the tests that compile kernels
	@scripts/once build/.tested $(CXX_TEST_INPUTS) -- bash -c '$(CTEST) --test-dir build -LE whole'

test-cpp-all: $(call unmade,setup build)  ## run all C++ tests and examples
	@$(CTEST) --test-dir build -LE sample

test-python: $(call unmade,install)  ## run the Python tests without the mark long, against the installed wheel
	@GDPA_SAMPLE=1 $(PYTEST) -m "not long" --junitxml=$(REPORTS)/pytest.xml tests/python

test-python-all: $(call unmade,install)  ## run all Python tests
	@$(PYTEST) --junitxml=$(REPORTS)/pytest.xml tests/python

configure-sanitize: $(call unmade,setup)
	@scripts/once build-sanitize/.configured -- \
	    cmake -G Ninja -S . -B build-sanitize -DGDPA_DEVELOP=ON -DGDPA_SANITIZE=ON

test-sanitize: configure-sanitize  ## run some C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/once build-sanitize/.tested $(CXX_TEST_INPUTS) -- bash -c 'cmake --build build-sanitize --target \
	    sanitized_sample && $(SANITIZED) $(CTEST) --test-dir build-sanitize -L sanitized'

test-sanitize-all: configure-sanitize  ## run all C++ tests under these sanitizers
	@cmake --build build-sanitize
	@$(SANITIZED) $(CTEST) --test-dir build-sanitize -LE sample

test-wheel: $(call unmade,wheel)  ## test the wheels in a bare environment with the newest PyTorch
	@scripts/test-wheel dist $(lastword $(TORCH_VERSIONS))

test-wheel-all: $(call unmade,wheel)  ## test the wheels with the oldest and with the newest supported PyTorch
	@for version in $(TORCH_VERSIONS); do scripts/test-wheel dist "$$version" || exit 1; done

gpu-test: build install  ## run the GPU tests on a machine with a GPU, and record them in reports/gpu.json
	@$(PYTHON) scripts/gpu-record run $(OPTIONS)

gpu-record-check:  ## fail if the record of the GPU tests does not cover the current sources
	@python3 scripts/gpu-record check

mutation: $(call unmade,setup)  ## put faults into a copy of the sources and list those that the tests miss; OPTIONS="--help"
	@$(PYTHON) scripts/mutation $(OPTIONS)

bench: install  ## measure the CPU figures of the README on this machine
	@$(PYTHON) -m gdpa.bench figures $(OPTIONS)

format: setup  ## format C++ and Python in place
	@clang-format-14 -i $(CXX_SOURCES)
	@$(PYTHON) -m ruff check --quiet --fix .
	@$(PYTHON) -m ruff format --quiet .

clean:  ## remove all build outputs; keep the Python environments
	@rm -rf build build-* dist results
