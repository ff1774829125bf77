# One entry for people and for CI: `make test` installs and checks, `make check` only checks, `make demo` shows.
PYTHON ?= python3
VENV ?= .venv
GPU_PYTHON ?= python3
BIN := $(VENV)/bin
PACKAGES := $(VENV)/lib/python*/site-packages
JOBS ?= 3
STAMP := $(VENV)/.installed
# tests start a thousand processes: without bytecode on disk each would compile our modules again
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo test check lint types tests test-slow test-gpu docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("rankwise needs Python >= 3.11, this is " + sys.version.split()[0] + ": set PYTHON=python3.11 (or newer)")'
	$(PYTHON) -m venv $(VENV)
# pip takes torch, because its settings may name a local build; uv installs the other 200 packages with a tenth of its CPU time
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt torch uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]' || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(STAMP)  ## create .venv with the pinned dependencies

demo: $(STAMP)  ## train on 2 ranks from a sharded Zarr store, start to end
	$(BIN)/python examples/digits/demo.py

test: $(STAMP)  ## install what is needed, then run every check (what CI calls)
	$(MAKE) lint
	$(MAKE) --jobs 2 types tests

check: lint types tests  ## every check, without installing

lint:  ## ruff: rules and format
	$(BIN)/ruff check src tests bench examples docs/build_api.py
	$(BIN)/ruff format --check src tests bench examples docs/build_api.py

types:  ## mypy, strict
	$(BIN)/mypy

tests:  ## tests, executed docs and examples; JOBS=1 runs them one by one
	@cp tests/quick_imports.py "$$(echo $(PACKAGES))" && echo "import quick_imports" >"$$(echo $(PACKAGES))/quick_imports.pth"
# a first run compiles test files and packages in one process, while mypy has the other core; workers would each compile all
	@test -d .pytest_cache || $(BIN)/python -m pytest --collect-only --quiet >/dev/null
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-slow:  ## the long variants that CI leaves out
	$(BIN)/python -m pytest -m slow

# a machine with a GPU may have nothing but PyTorch, NumPy, numba and pytest, so this installs and configures nothing
test-gpu:  ## the tests that need a CUDA device, with GPU_PYTHON (any Python that has torch, numpy, numba and pytest)
	PYTHONPATH=src $(GPU_PYTHON) -m pytest -c /dev/null --rootdir=. --confcutdir=tests/gpu --import-mode=importlib \
	  -p no:cacheprovider -o markers=gpu -m gpu -ra tests/gpu

docs: $(STAMP)  ## the API reference: a page for each public package, in build/api
	$(BIN)/python docs/build_api.py

clean:  ## remove what building and running left behind
	rm -rf .venv build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
