# Two commands do everything from a bare clone:
#   make demo   set up, index the sample documents, ask questions, print answers and times
#   make test   set up, then ruff, mypy, import contracts and the tests
#
# Tests run in WORKERS processes, each with one thread of torch and up to 3 GB of memory: one more than cores, because
# some tests wait, at least 2, at most 4 and no more than memory allows. Those of a file stay together. `make test` leaves
# out the ones marked `slow`: more than about eight seconds of processor time, such as power cuts, kills by the hundred,
# training and whole runs of the command, and further variants of tests that take several. `make test-all` runs every
# test.

PYTHON ?= python3
COUNT_WORKERS = import os; cores = getattr(os, 'sched_getaffinity', lambda _: range(os.cpu_count() or 2))(0); \
	memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'); \
	print(max(2, min(4, len(cores) + 1, memory // (4 * 10**9))))
BIN := .venv/bin
WORKERS ?= $(shell $(PYTHON) -c "$(COUNT_WORKERS)" || echo 2)
MINUTES ?= 60
SEED ?= 1

.PHONY: help setup demo test test-all lint bench attack wheel clean

help:
	@echo "make demo    set up, index the sample documents, ask questions, show how soon the first word came"
	@echo "make test    set up, then run ruff, mypy, the import contracts and the tests, without the slow ones"
	@echo "make test-all  the same, and the slow tests"
	@echo "make bench   time to first token, cached beside full prefill"
	@echo "make attack  attack the store for an hour: kills, damage, full drives, power cuts (MINUTES=60 SEED=1)"
	@echo "make wheel   build an installable package in dist/"
	@echo "make clean   remove what the commands above made in this folder (.venv, .demo, dist, caches)"

setup:
	@$(PYTHON) .ci/setup.py

demo: setup
	@$(BIN)/python -m desk_rag.cli.demo

PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# While mypy keeps one core busy, another compiles the tests, which each of the workers would do anew.
LINT = { $(BIN)/python -m pytest --collect-only >/dev/null 2>&1 & $(MAKE) --no-print-directory lint; code=$$?; wait; exit $$code; }

test:
	@$(PYTHON) .ci/setup.py --dev
	@$(LINT)
	@echo "== tests, without the slow ones" && $(PYTEST) -m "not slow"

test-all:
	@$(PYTHON) .ci/setup.py --dev
	@$(LINT)
	@echo "== tests, all" && $(PYTEST)

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
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
