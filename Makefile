# `make demo` and `make test` are all a fresh machine needs; both set up the environment first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# 16-bit products through AMX instructions crash on some virtual machines that only claim to have them.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# What `make test` adds when it also counts the lines that ran: that takes half as long again.
COVERAGE ?=
COUNTED := --cov --cov-report=term:skip-covered --cov-fail-under=95

.PHONY: setup demo test test-slow test-gpu lint format docs bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/flashgatr demo

test: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow and not gpu" $(if $(COVERAGE),$(COUNTED))

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto -m "not gpu"

test-gpu:
	$(PYTHON) -m pytest -m gpu

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: $(READY)
	$(BIN)/flashgatr bench all

clean:
	rm -rf $(VENV) docs/_build dist build
