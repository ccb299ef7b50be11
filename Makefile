# A fresh machine needs Python 3.11 or newer, pip and make; for the tests, also apt-get.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
# The versions that are known to work together; `make constraints` takes those of $(VENV).
CONSTRAINTS ?= constraints.txt
FREEZE := --exclude torch --exclude-editable
INSTALL = $(BIN)/python -m pip install --quiet $(CONSTRAINTS:%=--constraint %)
BIN := $(VENV)/bin
SECONDS ?= 60
MINUTES ?= 10

.PHONY: help demo s3 test test-all test-newest constraints messages test-gpu lint packages fuzz soak mutants bench bench-gpu clean

help:
	@echo "make demo       kill a training run in a save, resume it, compare every byte"
	@echo "make s3         an object store on this machine, to try s3:// with"
	@echo "make test       ruff, mypy --strict and the tests"
	@echo "make test-all   the same with the long proofs"
	@echo "make test-newest the tests with the newest versions of all packages but torch"
	@echo "make messages   docs/messages.txt, the texts that users read, written anew"
	@echo "make test-gpu   the tests that need a GPU"
	@echo "make fuzz       fuzz the readers for SECONDS=$(SECONDS)"
	@echo "make soak       use, kill and fill stores for MINUTES=$(MINUTES) on each of ext4, tmpfs and FUSE"
	@echo "make mutants    break the code in one place at a time: do the tests notice?"
	@echo "make bench      the figures of docs/benchmarks.md, measured here"
	@echo "make bench-gpu  those of a GPU, ten minutes"

# torch comes first and by its pin, so that nothing that depends on it brings another build.
$(VENV)/core: pyproject.toml Makefile $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "$(TORCH)"
	$(INSTALL) --editable ".[torch,train]"
	@touch $@

# All that the tests use: other frameworks, MPI, an object store, a browser's driver.
$(VENV)/ready: $(VENV)/core
	$(INSTALL) --editable ".[torch,train,dev]"
	@touch $@

demo: $(VENV)/core
	$(BIN)/python examples/demo.py

s3: $(VENV)/ready
	$(BIN)/python examples/object_store.py

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The browser that the dashboard is tested in, and ext4 for the tests of full disks.
packages:
	@PATH="$$PATH:/usr/sbin:/sbin"; \
	command -v chromium >/dev/null && command -v mkfs.ext4 >/dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi; \
	  $$sudo apt-get update --quiet && \
	  $$sudo apt-get install --quiet --yes --no-install-recommends chromium e2fsprogs mount; } || \
	  echo "chromium and e2fsprogs could not be installed: the tests that need them will fail"

# Tests start thousands of processes: what was compiled is kept, whatever the environment says.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: lint packages
	$(BIN)/python -m pytest -n 4 --dist worksteal

test-all: lint packages
	$(BIN)/python -m pytest -m "not gpu" -n 4 --dist worksteal

# The newest versions of everything but torch; what differs from the constraints is printed.
test-newest: packages
	$(MAKE) VENV=.venv-newest CONSTRAINTS= .venv-newest/ready
	-.venv-newest/bin/python -m pip freeze $(FREEZE) | diff --unified=0 constraints.txt -
	.venv-newest/bin/python -m pytest -n 4 --dist worksteal

constraints:
	$(BIN)/python -m pip freeze $(FREEZE) > constraints.txt

# The texts that users read; a change of one is seen in the diff of this file.
messages: $(VENV)/ready
	$(BIN)/python tools/messages.py > docs/messages.txt

test-gpu: $(VENV)/ready
	$(BIN)/python -m pytest tests/gpu -m gpu -rs

fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

soak: $(VENV)/ready packages
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

mutants: $(VENV)/ready packages
	$(BIN)/python -m tests.mutants --page

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks

bench-gpu: $(VENV)/ready
	$(BIN)/python -m benchmarks.gpu

clean:
	rm -rf $(VENV) build
