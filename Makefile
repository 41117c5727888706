# make demo   set up, train on generated data in about a minute, translate
# make check  what you touched: format, rules and the nearest tests, in under a minute
# make test   set up, then format, lint, types, docs and tests; fails on any
# make test-all   the same, with the slow cases that tests/thorough.toml leaves out
# make bench DATA=DIR   measure speed beside other projects, about an hour; DIR holds the corpora
# make newest   the tests of other packages' formats with the newest versions of these
# make site   build the documentation, and the course for any web host below studio/ of it
# make pictures   take pictures of every page of the studio at three widths (needs Chromium)
# PYTHON=python3.12 chooses the interpreter of a new .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
DEMO := build/demo
SLOW := skip

.DEFAULT_GOAL := help
.PHONY: help demo check test test-all lint types docs site tests bench newest pictures format clean

help:
	@sed -n 's/^# //p' Makefile

# The package alone, which is all that the demo needs: a fifth of what the tests install.
$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard heedful/kernels/csrc/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Heedful needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,check]'
	touch $(INSTALLED)

# By name: what is installed is not built again, and only the extras are added to it.
$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'heedful[dev]'
	touch $(READY)

demo: $(INSTALLED)
	$(BIN)/heedful demo --out $(DEMO)

check: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python tools/check.py

# Types and docs keep one core each busy; pytest comes last, so that its line ends the output.
test: $(READY)
	$(MAKE) --no-print-directory --jobs 2 lint types docs
	$(MAKE) --no-print-directory tests SLOW=$(SLOW)

test-all:
	$(MAKE) --no-print-directory test SLOW=run

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python tools/build_site.py

# After the documentation, whose builder empties the folder.
site: docs
	$(BIN)/heedful studio --export build/site/studio

# Hundreds of commands are started: without compiled modules each takes a second longer.
tests: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile --slow $(SLOW)

bench: $(READY)
	test -n "$(DATA)" || { echo "Name the folder of the corpora: make bench DATA=DIR" >&2; exit 1; }
	$(BIN)/python benchmarks/speed/run_all.py --data $(DATA) $(BENCH)

newest: $(READY)
	$(BIN)/python tools/newest_versions.py

pictures: $(READY)
	$(BIN)/python tools/studio_pictures.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build .cache .mypy_cache .pytest_cache .ruff_cache
