# Everything a user or a CI machine runs. `make` alone lists the targets.
#   make setup TORCH_INDEX_URL=...   takes torch from another package index (a CPU-only or a ROCm one)
#   make setup PYTHON=/path/python   uses another interpreter (3.11 or newer)
#   make wheels WHEEL_PYTHONS=...    builds for other interpreters than python3.11, python3.12 and python3.13
#   make quickstart OUTPUT=runs/new  trains into another folder; one that holds a run is never written over

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
RECIPE ?= recipes/quickstart.toml
OUTPUT ?=
BENCH ?=
WHEEL_PYTHONS ?= python3.11 python3.12 python3.13

# Tests wait for processes more than they compute: two processes more than cores.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $$(nproc) + 2)

VENV := .venv
SGLANG_VENV := .venv-sglang
SGLANG_RECORD ?=
VLLM_VENV := .venv-vllm
LLAMACPP_VENV := .venv-llamacpp
SERVERS_RECORD ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# The machine's own cmake comes first, the one of the virtual environment is the fallback.
SHELL_PATH := $(PATH)
export PATH := $(PATH):$(CURDIR)/$(BIN)

BUILD_INPUTS := pyproject.toml setup.py CMakeLists.txt $(shell find csrc -type f 2>/dev/null)
CXX_FILES := $(shell find csrc -name '*.cpp' -o -name '*.h' 2>/dev/null)
# A folder without Python files is no package for mypy.
PACKAGES := $(foreach p,engine kernels sandbox train,$(if $(shell find $(p) -name '*.py' 2>/dev/null),rocstar.$(p)))

.PHONY: help setup quickstart test proof-toy planted sglang-env test-sglang servers-env test-servers lint typecheck format ctest ctest-arm64 sanitize sanitize-threads bench figures wheel wheels site coverage clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(VENV)/.rocstar-dev  ## build rocstar into .venv, with what tests and linters need

quickstart: $(VENV)/.rocstar-runtime  ## build, then train a tiny model from nothing to a rising reward
	PATH='$(SHELL_PATH)' $(BIN)/rocstar train $(RECIPE) $(if $(OUTPUT),--output-dir '$(OUTPUT)')

# A test that fails runs once more, alone, at the end; the last line names it if it passes then.
PYTEST := $(BIN)/python -m pytest -p tests.rerun -n auto --maxprocesses=4 -rfEX

# A file is of one test process: what its tests share is made once.
test: setup  ## run the tests, on up to four cores
	$(PYTEST) --dist=loadfile --no-loadscope-reorder

proof-toy: setup  ## the proof on a device, at tiny sizes on this CPU
	$(BIN)/python benchmarks/gpu/proof.py --toy --out build/proof-toy

planted: setup  ## plant every bug that a test must catch, take away each layer that holds an attack
	ROCSTAR_PLANT_ALL=1 $(PYTEST) --dist=worksteal $(PLANTED_OPTIONS) \
	    tests/test_planted_bugs.py \
	    tests/kernels/test_interpreter.py::test_a_planted_error_is_caught_in_the_interpreter \
	    tests/sandbox/attacks/test_attacks.py::test_an_attack_gets_through_without_the_layer_that_holds_it

lint: setup  ## ruff, mypy, import-linter, clang-format, results and their page; changes no file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory typecheck
	$(BIN)/lint-imports --no-logo
	$(BIN)/python benchmarks/results_page.py --check
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))

typecheck: setup  ## mypy alone
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))

format: setup  ## let ruff and clang-format rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

sglang-env: $(SGLANG_VENV)/.rocstar-sglang  ## SGLang 0.5.23 for CPUs in .venv-sglang, apart from .venv

test-sglang: setup sglang-env  ## the tests against the real server; SGLANG_RECORD=1 records it anew
	ROCSTAR_SGLANG_PYTHON=$(SGLANG_VENV)/bin/python SGLANG_RECORD=$(SGLANG_RECORD) \
	    $(BIN)/python -m pytest -p no:cacheprovider tests/sglang

servers-env: sglang-env $(VLLM_VENV)/.rocstar-vllm $(LLAMACPP_VENV)/.rocstar-llamacpp  ## vLLM and llama.cpp for CPUs, too

test-servers: setup servers-env  ## serve, eval and rollout over vLLM, SGLang and llama.cpp; SERVERS_RECORD=1 records them anew
	ROCSTAR_SGLANG_PYTHON=$(SGLANG_VENV)/bin/python ROCSTAR_VLLM_PYTHON=$(VLLM_VENV)/bin/python \
	    ROCSTAR_LLAMACPP_PYTHON=$(LLAMACPP_VENV)/bin/python SERVERS_RECORD=$(SERVERS_RECORD) \
	    $(BIN)/python -m pytest -p no:cacheprovider tests/servers

# They link the objects that `make setup` compiled, so its tree and its options are used.
ctest: TREE = build/cmake-$(shell $(BIN)/python -c "import sys, sysconfig as s; print(sys.implementation.cache_tag, s.get_platform(), sep='-')")
ctest: setup  ## the C++ tests
	cmake -S . -B $(TREE) -DROCSTAR_BUILD_TESTS=ON
	cmake --build $(TREE) -j2
	ctest --test-dir $(TREE) --output-on-failure

ctest-arm64: setup  ## compile for arm64, and run what qemu can of the C++ tests
	bash .ci/arm64 $(BIN)/python

sanitize: setup  ## the C++ tests and the sandbox's Python tests under the address and undefined-behaviour sanitizers
	cmake -S . -B build/sanitize -DCMAKE_BUILD_TYPE=Debug -DROCSTAR_SANITIZE=ON -DROCSTAR_WERROR=ON \
	    -DROCSTAR_BUILD_TESTS=ON -DROCSTAR_BUILD_PYTHON=ON \
	    -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir)
	cmake --build build/sanitize -j2
	ctest --test-dir build/sanitize --output-on-failure
	$(BIN)/python tests/sandbox/run_sanitized.py build/sanitize

sanitize-threads: setup  ## the C++ tests, and Python tests with a supervisor, under the thread sanitizer
	cmake -S . -B build/sanitize-threads -DCMAKE_BUILD_TYPE=Debug -DROCSTAR_SANITIZE=thread -DROCSTAR_WERROR=ON \
	    -DROCSTAR_BUILD_TESTS=ON
	cmake --build build/sanitize-threads -j2
	ctest --test-dir build/sanitize-threads --output-on-failure
	$(BIN)/python tests/sandbox/run_sanitized.py build/sanitize-threads

bench: setup  ## list the benchmarks; BENCH=name runs one
ifeq ($(BENCH),)
	@ls benchmarks/*.py | sed 's|benchmarks/\(.*\)\.py|  make bench BENCH=\1|'
else
	$(BIN)/python benchmarks/$(BENCH).py
endif

figures: setup  ## docs/results.md from benchmarks/results/
	$(BIN)/python benchmarks/results_page.py

site: setup  ## the documentation as a site in build/site; a warning is an error
	@$(PHASE) 'site' $(BIN)/python .ci/site.py
	@echo build/site/index.html

wheel: $(VENV)/.rocstar-tools  ## the wheel of this checkout into dist/, without torch
	@$(PHASE) 'wheel' bash .ci/wheel dist $(BIN)/python
	@ls dist/*.whl

wheels:  ## one wheel for each Python of WHEEL_PYTHONS into dist/
	@set -e; for python in $(WHEEL_PYTHONS); do \
	    name=$$(basename $$python); env=build/wheel-$$name; \
	    $(PHASE) "environment of $$name" $$python -m venv $$env; \
	    $(PHASE) "build tools of $$name" $$env/bin/python -m pip install $(TOOLS); \
	    $(PHASE) "wheel of $$name" bash .ci/wheel dist $$env/bin/python; \
	done
	@ls dist/*.whl

coverage: setup  ## branch coverage; fails under 90% in engine, sandbox or train/algorithm
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report
	$(BIN)/coverage report --include='engine/*' --fail-under=90 >/dev/null
	$(BIN)/coverage report --include='sandbox/*' --fail-under=90 >/dev/null
	$(BIN)/coverage report --include='train/algorithm/*' --fail-under=90 >/dev/null

clean:  ## remove what builds and tests left; .venv and runs/ stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	rm -f $(VENV)/.rocstar-runtime $(VENV)/.rocstar-dev
	find engine kernels sandbox train tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# --- how .venv comes to be -------------------------------------------------------------------------------
# Build tools live in .venv and the build is not isolated: a rebuild downloads nothing. Each phase prints a line.

PHASE := bash .ci/phase
TOOLS = 'setuptools>=77' 'pybind11>=3.0,<4' ninja $(if $(shell command -v cmake),,'cmake>=3.25')

$(BIN)/python:
	@bash .ci/preflight $(PYTHON)
	@$(PHASE) 'Python environment' $(PYTHON) -m venv $(VENV)

$(VENV)/.rocstar-tools: | $(BIN)/python
	@$(PHASE) 'build tools' $(PIP) install $(TOOLS)
	@touch $@

$(VENV)/.rocstar-torch: | $(VENV)/.rocstar-tools
	@$(PHASE) '$(TORCH)' $(PIP) install $(if $(TORCH_INDEX_URL),--index-url '$(TORCH_INDEX_URL)') '$(TORCH)'
	@touch $@

$(VENV)/.rocstar-runtime: $(VENV)/.rocstar-torch $(BUILD_INPUTS)
	@$(call build,train fabric chat)
	@touch $@

$(VENV)/.rocstar-dev: $(VENV)/.rocstar-torch $(BUILD_INPUTS)
	@$(call build,dev)
	@touch $(VENV)/.rocstar-runtime $@

# $(call build,EXTRAS): packages of these extras, then rocstar itself, then a look at it.
define build
mkdir -p build && $(BIN)/python .ci/requirements $(1) >build/requirements.txt && \
$(PHASE) 'packages: $(1)' $(PIP) install -r build/requirements.txt && \
$(PHASE) 'compile (some minutes)' $(PIP) install --no-build-isolation --no-deps -e . && \
$(PHASE) 'import' $(BIN)/python -c 'import rocstar.train.main, rocstar.sandbox._native'
endef

$(SGLANG_VENV)/.rocstar-sglang: .ci/sglang-env tests/sglang/requirements.txt
	TORCH='$(TORCH)' TORCH_INDEX_URL='$(TORCH_INDEX_URL)' bash .ci/sglang-env $(SGLANG_VENV) $(PYTHON)
	@touch $@

$(VLLM_VENV)/.rocstar-vllm: .ci/vllm-env tests/servers/requirements-vllm.txt
	TORCH='$(TORCH)' TORCH_INDEX_URL='$(TORCH_INDEX_URL)' bash .ci/vllm-env $(VLLM_VENV) $(PYTHON)
	@touch $@

$(LLAMACPP_VENV)/.rocstar-llamacpp:
	$(PYTHON) -m venv $(LLAMACPP_VENV)
	$(LLAMACPP_VENV)/bin/python -m pip install xllamacpp==2026.10.11549
	@touch $@
