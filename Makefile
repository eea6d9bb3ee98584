# The commands for developers; CI runs the same commands. All of them work in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
CATALOGUES := src/headwise/locale/zh
COMPILED := $(CATALOGUES)/LC_MESSAGES/headwise.mo

.PHONY: setup messages models check test test-slow demo bench docs clean

setup: .venv/ready $(COMPILED)

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("headwise needs Python 3.11 or newer; select one: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "headwise: setting up .venv (the first time takes some minutes, because PyTorch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt -e '.[all,dev]'
	@touch $@

$(COMPILED): $(wildcard $(CATALOGUES)/*.po) | .venv/ready
	$(BIN)/python -m tools.messages compile

messages: setup
	$(BIN)/python -m tools.messages update

models: setup
	$(BIN)/headwise models get minilm

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.messages check

test: setup
	$(PYTEST) -n 2 -m "not slow"

test-slow: models
	$(PYTEST) -m slow

demo: models
	$(BIN)/headwise demo

bench: setup
	$(PIP) install -q -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.run

docs: setup
	$(BIN)/python -m docs.draw

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis headwise-demo.html
