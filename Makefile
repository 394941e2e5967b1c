# Plain python3 and pip suffice; uv is used where it is present.
# An editable install is never compiled: without this its build would fetch a compiler for nothing.
export INFERENCEMESH_COMPILE := 0
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SECONDS ?= 20
UV := $(shell command -v uv 2>/dev/null)
STAMP := $(VENV)/.installed-dev
RUN_STAMP := $(VENV)/.installed

.PHONY: install run test test-all prove prove-ci mutants fuzz bench fairness compile test-compiled check format lock clean

install: $(STAMP)  ## everything for development, from the lock file

$(VENV)/bin/python:
	$(if $(UV),$(UV) venv --quiet --python $(PYTHON) --seed $(VENV),$(PYTHON) -m venv $(VENV))

$(RUN_STAMP): pyproject.toml requirements.lock | $(VENV)/bin/python
	$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python -c requirements.lock -e .,$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e .)
	@touch $@

$(STAMP): pyproject.toml requirements.lock | $(VENV)/bin/python
	$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python -r requirements.lock,$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock)
	$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .,$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .)
	@touch $@ $(RUN_STAMP)

run: $(RUN_STAMP)  ## the demo: gateway, simulated model server, dashboard
	@exec $(BIN)/inferencemesh demo $(ARGS)

test: $(STAMP)  ## the default suite, under three minutes
	$(BIN)/python -m pytest -q -n 2 -m "not slow" $(ARGS)

test-all: $(STAMP)  ## everything, under ten minutes
	$(BIN)/python -m pytest -q -n 2 $(ARGS)

prove: $(STAMP)  ## the deep, long runs of the random and exhaustive tests: half an hour (docs/reliability.md)
	PROVE=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --timeout 1800 tests/core tests/prove tests/virtual tests/storm tests/fuzz tests/runtime/test_injection.py $(ARGS)

prove-ci: $(STAMP)  ## more seeds than the default suite, and all planted bugs: two minutes
	$(BIN)/python -m tests.prove.report --ci $(ARGS)

mutants: $(STAMP)  ## plant bugs one at a time, and see that a test notices each
	$(BIN)/python -m tests.prove.mutants $(ARGS)

fuzz: $(STAMP)  ## each target for SECONDS=20; guided by coverage where atheris is installed, else blind
	@for target in stream peek server client; do \
		$(BIN)/python -m tests.fuzz $$target --seconds $(SECONDS) $(ARGS) || exit 1; \
	done

bench: $(STAMP)  ## beside nginx, HAProxy and Envoy, those that are installed (bench/README.md)
	$(BIN)/python -m bench.run $(ARGS)

fairness: $(STAMP)  ## four tenants under each policy, two minutes; ARGS="--quick --out DIR" (bench/README.md)
	$(BIN)/python -m bench.fairness $(ARGS)

compile: $(STAMP)  ## a compiled copy beside the sources, in build/compiled; needs a C compiler (docs/deployment.md)
	$(BIN)/python hatch_build.py build/compiled

test-compiled: compile  ## the default suite against it
	PYTHONPATH=build/compiled $(BIN)/python -m pytest -q -n 2 -m "not slow" $(ARGS)

check: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## needs uv
	uv pip compile --quiet --universal --python-version 3.11 --group dev pyproject.toml -o requirements.lock --no-annotate --no-header --custom-compile-command "make lock"

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
