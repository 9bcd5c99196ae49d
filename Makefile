# Everything a person or a machine does with this repository, one word each.
#
#   make demo    a real trial, from nothing to a report        make test    every test there is
#   make check   lint, types, layers, tidiness                 make bench   the numbers
#   make docs    the web site under site/                      make clean   remove what make made
#   make pure    the tests without beds and Spark              make campaign   worlds of SEEDS=1..15
#
# Every target first installs what it needs into .venv, with pinned versions (constraints.txt); the
# second time is instant. PYTHON names the Python to use, 3.11.0 or later: make demo PYTHON=python3.13
# DEMO holds more options of the demo's trial: make demo DEMO='--duration 20s'

SHELL := /bin/sh
export PYTHON ?=
unexport PYTHONDONTWRITEBYTECODE # else each of many processes compiles every module again
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 python
BIN := .venv/bin
RUNNABLE := .venv/.runnable
READY := .venv/.ready
SUITE ?= suites/nightly.toml
SEEDS ?= 1..15

.PHONY: demo test check pure campaign bench docs nightly install develop packages clean

demo: install packages
	@$(BIN)/seatrial run suites/trials/demo.toml $(DEMO)

test: check
	@.ci/packages test
	@.ci/tests

# What needs neither a test bed nor Spark: half of all tests, and planted bugs that must be caught.
pure: develop
	$(BIN)/pytest -q -n auto -m "not bed and not spark"
	$(BIN)/seatrial selftest --quick

check: develop packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_tidy.py tests/test_forbidden.py tests/test_docs.py

# The same seeds every time: what fails here fails for everybody. On slow machines fewer of them.
campaign: install
	$(BIN)/seatrial simulate --drawn --seeds $(SEEDS) --time 4m

bench: develop packages
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --group bench
	@missed=; for script in benchmarks/[a-z]*.py; do \
	    echo "== $$script"; $(BIN)/python $$script || missed="$$missed $$script"; \
	done; \
	test -z "$$missed" || { echo "seatrial: goals missed, or no numbers:$$missed" >&2; exit 1; }

docs: develop
	$(BIN)/pytest -q tests/test_docs.py --rewrite
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

nightly: install packages
	$(BIN)/seatrial suite $(SUITE)

install: $(RUNNABLE)
develop: $(READY)

$(RUNNABLE): what := run
$(READY): what := dev
$(RUNNABLE) $(READY): pyproject.toml constraints.txt
	@.ci/packages
	@for p in $${PYTHON:-$(PYTHONS)}; do \
	    "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && exec "$$p" .ci/install $(what); \
	done; \
	echo "seatrial: Python 3.11 or later is needed, and $${PYTHON:-there} is none: sudo apt-get install python3 python3-venv" >&2; exit 1

packages:
	@.ci/packages

clean:
	rm -rf .venv site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
