# Every target makes .venv first; nothing else is needed but Python 3.11-3.13, git and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The packages of the demo, in seconds, and all of them.
DEMO   := $(VENV)/.demo
STAMP  := $(VENV)/.installed

# Programs that start a thousand times compile their modules once, whatever the shell of the caller.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test tests drivers check bench papers gpu sim soak lock clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(DEMO): requirements-demo.lock pyproject.toml
	@$(PYTHON) tools/install.py requirements-demo.lock
	@touch $@

$(STAMP): $(DEMO) requirements.lock
	@$(PYTHON) tools/install.py requirements.lock
	@touch $@

install: $(STAMP)  ## every package, into .venv: for the tests, and for functions with kernels

demo: $(DEMO)  ## the whole way on this machine: upload, lend, compute, result, clean-up
	$(BIN)/orchgpu demo $(ARGS)

# Tests that failed run once more, alone, as CPython's `regrtest --rerun` does: the tests of real processes
# share two cores with three others. A test fails when it fails again; exit 1 of pytest: tests failed.
AGAIN = test $$? -eq 1 && echo "the tests that failed run again, alone" && $(PYTEST) --last-failed --maxfail 3 \
  && echo "they passed alone: each is a defect to report, of the test or of the product"
PYTEST = $(BIN)/python -m pytest
# Four on two cores: most tests of real processes wait for them.
WORKERS ?= 4
test: $(STAMP)  ## all checks and tests, as CI runs them
	$(MAKE) --no-print-directory --jobs 3 check tests drivers

tests: $(STAMP)
	$(PYTEST) --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || { $(AGAIN); }

drivers: $(STAMP)
	OCL_ICD_VENDORS=/nonexistent $(PYTEST) -p no:cacheprovider -m "drivers and not soak" \
	  $$(grep -rl --include='test_*.py' 'mark\.drivers' tests)

check: $(STAMP)  ## lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

papers: $(STAMP)  ## the papers' experiments, into docs/papers.md; ARGS="--quick", "004 000", "--list"
	$(BIN)/python -m experiments $(ARGS)

sim: $(STAMP)  ## 1,000 seeds of the simulations of faults
	$(BIN)/python -m simulator.faults --seeds 1000 $(ARGS)
	$(BIN)/python -m simulator.failover --seeds 1000 $(ARGS)

bench: $(STAMP)  ## the short benchmarks, written to docs/reference/benchmarks.md
	$(BIN)/python -m benchmarks $(ARGS)

# Without .venv, for there may be no network: the plain Python, and the wheels of a folder.
gpu:  ## every check that needs an NVIDIA GPU, into docs/gpu-runs; WHEELS=folder of packages
	$$(test -x $(BIN)/python && echo $(BIN)/python || echo $(PYTHON)) -m tools.gpu_check \
	  $(if $(WHEELS),--wheels $(WHEELS)) $(ARGS)

soak: $(STAMP)  ## long fault runs; the end-to-end tests in AWS's weather
	$(BIN)/python -m pytest -m soak $(ARGS)
	$(BIN)/python -m pytest tests/e2e --weather aws $(ARGS)

# All extras but host-cuda, whose ONNX Runtime excludes that of the others.
EXTRAS := scheduler postgres monitor host opencl cuda local moto own otel top simulate test dev
LOCK = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate --no-emit-index-url --quiet
lock: $(STAMP)  ## pin the newest versions that the bounds allow, with hashes
	$(LOCK) --upgrade $(foreach extra,$(EXTRAS),--extra $(extra)) -o requirements.lock
	$(LOCK) --constraint requirements.lock --extra demo --extra install -o requirements-demo.lock

clean:  ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
