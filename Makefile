# `make run` and `make test` need only python3.11 or newer, pip and make; everything else goes into .venv.

# The first interpreter that is new enough; name another with `make PYTHON=/path/to/python test`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Passed on to the command a target runs: `make test ARGS="-k aging"`.
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
TREES := $(wildcard src tests benchmarks examples tools)

.PHONY: run test check bench clean docs changelog types

run: $(VENV)/ready
	@$(BIN)/fairlead serve $(ARGS)

test: $(VENV)/ready
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/ready
	@$(BIN)/ruff format --check $(TREES)
	@$(BIN)/ruff check $(TREES)
	@$(BIN)/mypy $(TREES)
	@$(BIN)/python -m pytest tests/test_shape.py

# The dashboard's JSDoc types; needs npm, which nothing else here does.
types:
	@npx --yes --package typescript@5 tsc -p tests/dashboard/jsconfig.json

bench: $(VENV)/ready-bench
	@$(BIN)/python -m benchmarks $(ARGS)

# The site, in build/site; a broken link is an error. Open build/site/index.html (its search needs a server, such as python -m http.server).
docs: $(VENV)/ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict $(ARGS)

# Gathers changes/ into CHANGELOG.md: `make changelog ARGS="0.2.0"`; without a version it shows what would be written.
changelog: $(VENV)/ready
	@$(BIN)/python tools/changelog.py $(ARGS)

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian ships venv without ensurepip unless python3-venv is installed, and forbids installing beside
# its own packages. An empty environment needs no ensurepip, and --target into it breaks no rule.
# The build backend is installed first so that it is pinned too (build isolation ignores constraints).
$(VENV)/ready: pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Fairlead needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python." >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version); this takes a minute or two, once."
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip install -qq --target \
			"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip; }
	@$(PIP) install -c constraints.txt hatchling editables
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[all,dev]'
	@touch $@

$(VENV)/ready-bench: $(VENV)/ready
	@echo "Installing the benchmark peers."
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[all,dev,bench]'
	@touch $@
