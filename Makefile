# Everything runs in a virtual environment that holds exactly what requirements-dev.lock names.
# PYTHON makes it (3.11, 3.12 or 3.13), VENV says where it is.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n auto

BIN := $(VENV)/bin
LOCK_HASH := $(shell $(PYTHON) -c "import hashlib; print(hashlib.sha256(open('requirements-dev.lock', 'rb').read()).hexdigest()[:16])")
LOCKED := $(VENV)/.locked-$(LOCK_HASH)
INSTALLED := $(VENV)/.installed
CHECKED := service tests
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --no-annotate

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-crash test lint format docs lock clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Make the virtual environment (once for each lock)
	@test "$$(cat $(INSTALLED))" = "$(CURDIR)" || { rm $(INSTALLED); $(MAKE) --no-print-directory $(INSTALLED); }

demo: venv ## Watch a real crew run behind the fence; needs no account; uses OPENAI_API_KEY if it is set
	@$(BIN)/crewai-sidecar demo

demo-crash: venv ## The same, killed half-way and started again
	@$(BIN)/crewai-sidecar demo --crash

test: venv ## Run the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: venv ## Check style, types, structure, spelling and dependencies
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/deptry service
	$(BIN)/python tests/policy/package_hosts.py

format: venv ## Put the code into the house's form
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

docs: venv ## Write the README's table of settings
	$(BIN)/python tests/policy/settings_table.py

lock: venv ## Write both locks from pyproject.toml (newer versions: make lock LOCK_ARGS=--upgrade)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(COMPILE) $(LOCK_ARGS) pyproject.toml -o requirements.lock
	$(COMPILE) $(LOCK_ARGS) --group dev pyproject.toml -o requirements-dev.lock -c requirements.lock

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A lock that changed gets a new environment: what the old one had and the new one lacks must not stay.
$(LOCKED): requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "$(PYTHON) is not Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Installing into $(VENV), about a minute …"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "$(CURDIR)" > $@
