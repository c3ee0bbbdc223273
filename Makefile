# Every target makes .venv first; nothing else is needed but Python 3.11-3.13, git and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check bench sim soak lock clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), "Python 3.11 to 3.13 is needed; say make PYTHON=python3.12"'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP)  ## the whole way on this machine: upload, lend, compute, result
	$(BIN)/orchgpu demo $(ARGS)

test: $(STAMP)  ## all checks and tests, as CI runs them
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)
	OCL_ICD_VENDORS=/nonexistent $(BIN)/python -m pytest -m "drivers and not soak" \
	  $$(grep -rl --include='test_*.py' 'mark\.drivers' tests)

check: $(STAMP)  ## lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sim: $(STAMP)  ## 1,000 seeds of the simulator
	$(BIN)/python -m simulator.faults --seeds 1000 $(ARGS)

bench: $(STAMP)  ## the short benchmarks, written to docs/benchmarks.md
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(STAMP)  ## long fault runs
	$(BIN)/python -m pytest -m soak $(ARGS)

lock: $(STAMP)  ## pin the newest versions that the bounds allow, with hashes
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet -o requirements.lock

clean:  ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
