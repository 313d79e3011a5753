# Everything happens in .venv; every target sets it up first and only when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
EXTRAS := $(if $(GPU),dev$(comma)gpu,dev)
STAMP := $(VENV)/.setup$(if $(GPU),-gpu)
RUN := $(if $(GPU),submissions/cuda-mma --shapes quick,submissions/cpu-blocked --shapes cpu)

# Tests start hundreds of interpreters, and none needs to compile again what another one has.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run board test bench lint format clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(STAMP) ## Create .venv and install the exact versions of constraints.txt.

run: $(STAMP) ## Measure a sample submission: on the GPU where there is one, else on the CPU.
	$(BIN)/hgemm run $(RUN)

board: $(STAMP) ## Open the leaderboard on the shipped runs, in the browser.
	$(BIN)/hgemm board

# Two at a time, each with device locks of its own; benchmarks are no tests.
test: $(STAMP) ## Run the tests.
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --benchmark-disable

bench: $(STAMP) ## Measure the harness and the board themselves in seconds, such as `import harness`.
	$(BIN)/python -m pytest tests/bench_*.py

lint: $(STAMP) ## Check style and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP) ## Format the code.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove .venv and caches; runs/ stays.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

# torch comes first and alone: then its CPU build satisfies the range in pyproject.toml and no CUDA build is fetched.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "HGEMM Arena needs Python 3.11 or newer; set PYTHON=/path/to/python3." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
