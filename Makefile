# Every task of the project, one target each; `make` lists them. A target sets up what it needs first: the Debian
# packages and the Python environment of requirements/, then the build. What has not changed is not done again:
# scripts/once compares contents.
SHELL := bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What one build folder has compiled, another with the same flags takes from there: the tests' and the wheel's.
export CXX
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CCACHE_DIR := $(CURDIR)/.cache/ccache
# Object files are found again from another checkout of the same sources.
export CCACHE_BASEDIR := $(CURDIR)
# Where the tests find the NVRTC that PyTorch brings.
export GDPA_SITE_PACKAGES = $(abspath $(wildcard .venv/lib/python3*/site-packages))
# And the oldest one that they compile kernels with.
export GDPA_OLDEST_NVRTC = $(abspath $(wildcard .venv-nvrtc/lib/python3*/site-packages/nvidia/cu13/lib))

PYTHON := .venv/bin/python
REPORTS ?= build/reports
TORCH_VERSIONS := 2.11.0 2.15.0
# `make test` runs samples of what takes long; the targets that end in -all run everything. A sample that has passed is
# not run again before one of its inputs changes.
CXX_TEST_INPUTS = $(wildcard CMakeLists.txt cmake include src kernels tools tests/cpp tests/gpu tests/emulator examples \
                             requirements)
CTEST = GTEST_OUTPUT=xml:$(abspath $(REPORTS))/ ctest --output-on-failure --parallel $$(nproc)
# AddressSanitizer's dlopen hides from NVRTC the folder that it lies in, where its other half is. AddressSanitizer of GCC
# before 14 takes a block of a thread's variables whose address is 16 modulo 4096 for one of an old glibc, reads two words
# before it as its place and size, and dies of that at exit: it must not look at those blocks.
SANITIZED = ASAN_OPTIONS=intercept_tls_get_addr=0 GDPA_FUZZ_PROBLEMS=300 GDPA_COMPILE_KERNELS=4 \
            LD_LIBRARY_PATH="$(GDPA_SITE_PACKAGES)/nvidia/cu13/lib:$(GDPA_OLDEST_NVRTC)"
CXX_SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.h.in')
PACKAGE_SOURCES = $(wildcard CMakeLists.txt pyproject.toml LICENSE NOTICES.md README.md cmake include src kernels tools torch python)

.PHONY: gpu-test gpu-record-check help setup build wheel install demo bench test test-all lint test-cpp test-cpp-all \
        test-python test-python-all test-sanitize test-sanitize-all configure-sanitize test-wheel test-wheel-all format clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install  ## the three uses of gdpa on the user histories of MovieLens 100K, checked and timed; OPTIONS="--help"
	@$(PYTHON) -m gdpa.demo $(OPTIONS)

test:  ## every kind of check, with samples of the longest ones: about 15 minutes on 2 cores, then what has changed
	@python3 scripts/gpu-record check || echo "make test: a warning; what follows needs no GPU"
	@scripts/run-steps build/reports setup build install lint test-cpp test-python test-sanitize test-wheel

test-all:  ## every check whole, step by step; each step is a target of its own
	@python3 scripts/gpu-record check || echo "make test-all: a warning; what follows needs no GPU"
	@scripts/run-steps build/reports setup build install lint test-cpp-all test-python-all test-sanitize-all test-wheel-all

setup:  ## system packages and the Python environment .venv
	@scripts/install-system-packages requirements/debian.txt
	@scripts/once .venv/.requirements requirements/python.txt requirements/data.txt -- \
	    scripts/make-environment .venv "-r requirements/python.txt" "--no-deps -r requirements/data.txt"
	@scripts/once .venv-nvrtc/.requirements requirements/nvrtc.txt -- \
	    scripts/make-environment .venv-nvrtc "--no-deps -r requirements/nvrtc.txt"

build: setup  ## the C++ library, command line, tests and examples, in build/
	@scripts/once build/.configured -- cmake -G Ninja -S . -B build -DGDPA_DEVELOP=ON
	@cmake --build build

wheel: setup  ## the Python package with all that it links to, in dist/
	@scripts/once dist/.built $(PACKAGE_SOURCES) -- scripts/build-wheel $(PYTHON) dist

install: wheel  ## that wheel, into .venv
	@scripts/once .venv/.package dist -- $(PYTHON) -m pip install --quiet --force-reinstall --no-deps dist/*.whl

lint: build  ## formatter, ruff, mypy and clang-tidy, changing nothing
	@clang-format-14 --dry-run -Werror $(CXX_SOURCES)
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m ruff format --quiet --check .
	@$(PYTHON) -m mypy
	@scripts/once build/.tidy .clang-tidy include src tools -- scripts/run-clang-tidy build
	@echo "lint: nothing to complain about"

test-cpp: build  ## the C++ tests and examples, with samples of those that compile kernels
	@scripts/once build/.tested $(CXX_TEST_INPUTS) -- bash -c '$(CTEST) --test-dir build -LE whole'

test-cpp-all: build  ## all C++ tests and examples
	@$(CTEST) --test-dir build -LE sample

test-python: install  ## the Python tests, without those marked long, against the installed wheel
	@GDPA_SAMPLE=1 $(PYTHON) -m pytest --quiet -m "not long" --junitxml=$(REPORTS)/pytest.xml tests/python

test-python-all: install  ## all Python tests
	@$(PYTHON) -m pytest --quiet --junitxml=$(REPORTS)/pytest.xml tests/python

configure-sanitize: setup
	@scripts/once build-sanitize/.configured -- \
	    cmake -G Ninja -S . -B build-sanitize -DGDPA_DEVELOP=ON -DGDPA_SANITIZE=ON

test-sanitize: configure-sanitize  ## some C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/once build-sanitize/.tested $(CXX_TEST_INPUTS) -- bash -c 'cmake --build build-sanitize --target \
	    sanitized_sample && $(SANITIZED) $(CTEST) --test-dir build-sanitize -L sanitized'

test-sanitize-all: configure-sanitize  ## all C++ tests under these sanitizers
	@cmake --build build-sanitize
	@$(SANITIZED) $(CTEST) --test-dir build-sanitize -LE sample

test-wheel: wheel  ## the wheel in a bare environment with the newest PyTorch
	@scripts/test-wheel dist/*.whl $(lastword $(TORCH_VERSIONS))

test-wheel-all: wheel  ## the wheel in bare environments, one for each supported end of PyTorch's versions
	@for version in $(TORCH_VERSIONS); do scripts/test-wheel dist/*.whl "$$version" || exit 1; done

gpu-test: build install  ## the GPU tests, on a machine with a GPU; keeps their record, reports/gpu.json
	@$(PYTHON) scripts/gpu-record run $(OPTIONS)

gpu-record-check:  ## fails where the record of the GPU tests does not cover the sources as they are
	@python3 scripts/gpu-record check

bench: install  ## the figures of the README, measured here
	@$(PYTHON) -m gdpa.bench --figures $(OPTIONS)

format: setup  ## formats C++ and Python in place
	@clang-format-14 -i $(CXX_SOURCES)
	@$(PYTHON) -m ruff check --quiet --fix .
	@$(PYTHON) -m ruff format --quiet .

clean:  ## removes what the build made; keeps the Python environments
	@rm -rf build build-* dist results
