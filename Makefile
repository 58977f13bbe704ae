# `make` without a target lists all targets. Everything is installed inside the checkout, in `.venv`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
NATIVE := src/downrange/_native.abi3.so
export UV_PROJECT_ENVIRONMENT := .venv
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Tests start hundreds of processes. Each would compile all modules again if bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup native java browser promtool demo examples test lint style types rust fix unit bench fuzz campaign wheels pythons audit golden clean

help:  ## List all targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) $(NATIVE) java  ## Create .venv with the downrange command, all extras and all tools

$(READY): pyproject.toml uv.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet "uv==$$(awk '/^name = "uv"$$/ { getline; gsub(/"/, "", $$3); print $$3; exit }' uv.lock)"
	$(BIN)/uv sync --frozen --all-extras --quiet
	@touch $@

native: $(NATIVE)  ## Build the native part, if a Rust toolchain is there; else say what that costs

$(NATIVE): $(READY) $(shell find native -name target -prune -o -type f -print)
	@$(BIN)/python scripts/build_native.py
	@touch -c $@

java: $(READY)  ## Check that Java is installed for Spark; install it, or print how to
	@$(BIN)/python scripts/ensure_java.py

browser: $(READY)  ## Check that Chromium is installed for tests of the console; install it, or print how
	@$(BIN)/python scripts/ensure_browser.py

promtool: $(READY)  ## Check that promtool is there for tests of the alert rules; get it, or print how to
	@$(BIN)/python scripts/ensure_promtool.py

demo: $(NATIVE) java  ## Two brokers, a crash, Spark, a report in build/demo; CONSOLE=1 keeps a console
	@$(BIN)/downrange demo --output build/demo $(if $(CONSOLE),--console)

EXAMPLES := wire_tour embedded_cluster send_sync send_async selectors_and_order fault_tolerance \
	retries_and_errors transactions template pull_consumer push_consumer push_async orderly \
	broadcast retries subscribed_pull worker metrics
examples: $(NATIVE)  ## Run some of the examples and show their output
	@for name in $(EXAMPLES); do \
		printf '\n==== examples/%s.py\n\n' $$name; $(BIN)/python examples/$$name.py || exit 1; \
	done

test: $(NATIVE) style browser promtool  ## Check format, lint, types, and run all tests; lists skipped tests with reasons
	$(BIN)/coverage erase
	$(BIN)/python scripts/run_tests.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --include='src/downrange/wire/*,src/downrange/filters/*,src/downrange/client/flows/*,src/downrange/store/*' --fail-under=100

unit: $(NATIVE)  ## Run the unit tests only
	$(BIN)/python -m pytest tests/unit tests/golden

lint: style types rust  ## Check format, lint rules, types (mypy, pyright), Rust, generated files, the lock

style: $(READY)
	$(BIN)/uv lock --check --offline --quiet
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/ruff format --check
	$(BIN)/ruff check

# `make test` runs this and the next beside the tests.
types: $(READY)
	$(BIN)/mypy
	$(BIN)/pyright

# Format, clippy and tests of native/.
rust: $(READY)
	$(BIN)/python scripts/build_native.py check

fix: $(READY)  ## Generate the sync classes, format, and fix what ruff can fix
	$(BIN)/python scripts/generate_sync.py
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

QUICK_SPARK := --only read --side downrange --side kafka --rows 50000
bench: $(NATIVE)  ## Run the benchmarks: wire, store, matrix, growth, Spark; QUICK=1
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/store.py $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.growth $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.spark $(if $(QUICK),--quick $(QUICK_SPARK))
	@$(if $(QUICK),echo "left out: the store with 10000 topics; all Spark jobs but read, and the connector of Apache")

SECONDS ?= 60
SEED ?= random
fuzz: $(NATIVE)  ## Fuzz the wire layer; SECONDS=60 SEED=random
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

campaign: $(NATIVE)  ## Run the long tests; SECONDS=60, and some minutes more for 100 kills and closes
	$(BIN)/python -m tests.fuzz --seconds $$(($(SECONDS) / 3)) --seed random
	$(BIN)/python -m tests.unit.store.test_crashes --seconds $$(($(SECONDS) / 3))
	$(BIN)/python -m tests.simulation --seconds $$(($(SECONDS) / 3))
	$(BIN)/python -m tests.faults.test_repeated_kills --kills 100
	$(BIN)/python -m tests.faults.test_group_storms --seconds $(SECONDS) --closes 100

wheels: $(NATIVE)  ## Build source, pure wheel and native wheel into dist/
	$(BIN)/python scripts/build_wheels.py

VERSIONS ?=
pythons: $(NATIVE)  ## Run unit and contract tests with each Python; VERSIONS="3.12 3.13"
	$(BIN)/python scripts/test_pythons.py $(VERSIONS)

audit: $(NATIVE)  ## Compare the crates of the native part with the list of known faults
	@command -v cargo-audit > /dev/null || { echo "cargo-audit is missing: cargo install cargo-audit"; exit 1; }
	cd native && cargo audit

golden: $(NATIVE)  ## Capture tests/golden again from the Apache servers
	$(BIN)/python -m tests.golden.capture

clean:  ## Remove all generated files
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage native/target $(NATIVE)
