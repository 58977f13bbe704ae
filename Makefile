# `make` without a target lists all targets. Everything is installed inside the checkout, in `.venv`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export UV_PROJECT_ENVIRONMENT := .venv
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup java demo examples test lint style types fix unit bench fuzz campaign golden clean

help:  ## List all targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) java  ## Create .venv with the downrange command, all extras and all tools

$(READY): pyproject.toml uv.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet "uv==$$(awk '/^name = "uv"$$/ { getline; gsub(/"/, "", $$3); print $$3; exit }' uv.lock)"
	$(BIN)/uv sync --frozen --all-extras --quiet
	@touch $@

java: $(READY)  ## Check that Java is installed for Spark; install it, or print how to
	@$(BIN)/python scripts/ensure_java.py

demo: $(READY) java  ## Two brokers, every way to send, a crash, Spark, a report: build/demo/report.html
	@$(BIN)/downrange demo --output build/demo

EXAMPLES := wire_tour embedded_cluster send_sync send_async selectors_and_order fault_tolerance \
	retries_and_errors transactions template pull_consumer push_consumer push_async orderly \
	broadcast retries subscribed_pull worker
examples: $(READY)  ## Run some of the examples and show their output
	@for name in $(EXAMPLES); do \
		printf '\n==== examples/%s.py\n\n' $$name; $(BIN)/python examples/$$name.py || exit 1; \
	done

test: style  ## Check format, lint, types, and run all tests; lists skipped tests with reasons
	$(BIN)/coverage erase
	$(BIN)/python scripts/run_tests.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --include='src/downrange/wire/*,src/downrange/filters/*,src/downrange/client/flows/*,src/downrange/store/*' --fail-under=100

unit: $(READY)  ## Run the unit tests only
	$(BIN)/python -m pytest tests/unit tests/golden

lint: style types  ## Check format, lint rules, types (mypy and pyright), generated files and the lock

style: $(READY)
	$(BIN)/uv lock --check --offline --quiet
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/ruff format --check
	$(BIN)/ruff check

# `make test` runs this beside the tests.
types: $(READY)
	$(BIN)/mypy
	$(BIN)/pyright

fix: $(READY)  ## Generate the sync classes, format, and fix what ruff can fix
	$(BIN)/python scripts/generate_sync.py
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

QUICK_SPARK := --only read --side downrange --side kafka --rows 50000
bench: $(READY)  ## Run the benchmarks: wire, store, matrix, growth, Spark; QUICK=1
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/store.py $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.growth $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.spark $(if $(QUICK),--quick $(QUICK_SPARK))
	@$(if $(QUICK),echo "left out: the store with 10000 topics; all Spark jobs but read, and the connector of Apache")

SECONDS ?= 60
SEED ?= random
fuzz: $(READY)  ## Fuzz the wire layer; SECONDS=60 SEED=random
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

campaign: $(READY)  ## Run the long tests; SECONDS=60, and some minutes more for 100 kills and closes
	$(BIN)/python -m tests.fuzz --seconds $$(($(SECONDS) / 3)) --seed random
	$(BIN)/python -m tests.unit.store.test_crashes --seconds $$(($(SECONDS) / 3))
	$(BIN)/python -m tests.simulation --seconds $$(($(SECONDS) / 3))
	$(BIN)/python -m tests.faults.test_repeated_kills --kills 100
	$(BIN)/python -m tests.faults.test_group_storms --seconds $(SECONDS) --closes 100

golden: $(READY)  ## Capture tests/golden again from the Apache servers
	$(BIN)/python -m tests.golden.capture

clean:  ## Remove all generated files
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
