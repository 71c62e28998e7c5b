# Two commands do everything from a bare clone:
#   make demo   set up, index the sample documents, ask questions, print answers and times
#   make test   set up, then ruff, mypy, import contracts and the tests

PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 60
SEED ?= 1

.PHONY: help setup demo test lint bench attack wheel clean

help:
	@echo "make demo    set up, index the sample documents, ask questions, show how soon the first word came"
	@echo "make test    set up, then run ruff, mypy, the import contracts and the tests"
	@echo "make bench   time to first token, cached beside full prefill"
	@echo "make attack  attack the store for an hour: kills, damage, full drives, power cuts (MINUTES=60 SEED=1)"
	@echo "make wheel   build an installable package in dist/"
	@echo "make clean   remove what the commands above made in this folder (.venv, .demo, dist, caches)"

setup:
	@$(PYTHON) .ci/setup.py

demo: setup
	@$(BIN)/python -m desk_rag.cli.demo

test:
	@$(PYTHON) .ci/setup.py --dev
	@$(MAKE) --no-print-directory lint
	@echo "== tests" && $(BIN)/python -m pytest

lint:
	@echo "== ruff" && $(BIN)/python -m ruff check .
	@echo "== mypy" && $(BIN)/python -m mypy
	@echo "== import contracts" && $(BIN)/python -c "from importlinter.cli import lint_imports_command as run; run()"

attack:
	@$(PYTHON) .ci/setup.py --dev
	@$(BIN)/python -m tests.attack --minutes $(MINUTES) --seed $(SEED)

bench: setup
	@$(BIN)/python -m desk_rag bench ttft

wheel: setup
	@$(BIN)/python -m pip wheel . --no-deps --quiet --wheel-dir dist && ls -l dist

clean:
	rm -rf .venv .demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
