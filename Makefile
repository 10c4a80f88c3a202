# One environment, built once and again only when what it is made from changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check fuzz programs reliability bench clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (the first time takes some minutes)"
	@$(BIN)/python -m pip install -qq --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --group dev --editable .
	@touch $@

demo: $(READY) ## this machine's ceilings, what models cost, two variants compared, a program optimized
	@$(BIN)/ridgeline hardware --measure
	@$(BIN)/ridgeline model examples/mlp.py:build examples/cnn.py:build examples/transformer.py:build
	@$(BIN)/ridgeline model examples/transformer.py:build --train
	@bin=$$(cd $(BIN) && pwd) && cd examples/pairs && "$$bin/ridgeline" compare \
		baseline_bandwidth.py:workload optimized_bandwidth.py:workload --budget 20s
	@bin=$$(cd $(BIN) && pwd) && cd examples && "$$bin/ridgeline" optimize --fresh --budget 2m train_slow_loader.py

test: $(READY) ## every test that needs no GPU
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: $(READY) ## ruff, mypy --strict, import contracts, checks of the house and of the page
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python checks/house.py
	@$(BIN)/python checks/web.py

fuzz: $(READY) ## 2,000 damaged traces and 500 snapshots, each read or refused in a sentence
	@$(BIN)/python benchmarks/trace_fuzz.py --mutants 2000
	@$(BIN)/python benchmarks/memory_snapshots.py --mutants 500

programs: $(READY) ## whole programs under `ridgeline run`: every kind of loop, every bad end
	@$(BIN)/python -m pytest -m reliability --numprocesses 2 --dist loadfile

reliability: $(READY) ## programs that must not notice us, faults of ours, kills, secrets, limits
	@$(BIN)/python -m reliability --jobs 2 --one-in $(or $(ONE_IN),1)

bench: $(READY) ## our figures, each a ratio in one run
	@$(BIN)/python benchmarks/flops_matrix.py
	@$(BIN)/python benchmarks/memory_prediction.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/false_alarms.py
	@$(BIN)/python benchmarks/overhead.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
