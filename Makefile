# Every target makes its own environment on a fresh machine and remakes it when the requirements change.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# One thread per worker: two workers that each start a pool of threads slow each other down.
test check newest oldest: export OMP_NUM_THREADS := 1
test check newest oldest: export MKL_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.DELETE_ON_ERROR:
.PHONY: help demo test check newest oldest clean

help:
	@echo "make demo    watch a bundled model write faster and write the same; offline once installed"
	@echo "make test    run the tests (the slow ones: $(BIN)/pytest -m slow; all: $(BIN)/pytest -m '')"
	@echo "make check   lint, formatting, types, and the rules of the house"
	@echo "make newest  what a user does first, on the newest versions that the package admits (TORCH=torch==2.13.0: on that torch)"
	@echo "make oldest  the same on the oldest transformers"
	@echo "make clean   remove the environment and every cache"

demo: $(READY)
	@$(BIN)/paceline demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tools papers
	$(BIN)/python -m pytest -q tests/test_house.py

# Environments without constraints.txt, for a release of a library may break what the pinned versions do not show.
newest: TORCH := torch
newest: TRANSFORMERS := transformers
oldest: TORCH := torch==2.13.0
oldest: TRANSFORMERS := transformers==5.0.0
newest oldest:
	$(PYTHON) -m venv --clear .venv-$@
	.venv-$@/bin/python -m pip install -q '$(TORCH)'
	.venv-$@/bin/python -m pip install -q --upgrade '$(TORCH)' '$(TRANSFORMERS)' '.[dev]'
	.venv-$@/bin/python -m pip list | grep -E '^(torch|transformers|tokenizers|numpy) '
	.venv-$@/bin/python -m pytest -q -n 2 -m '' tests/test_any_version.py

# The stamp is removed first and written last, so an interrupted installation starts again. torch goes in
# alone and pinned: resolved together with the rest it may bring gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	@rm -f $(READY)
	@$(PYTHON) -c 'import sys; sys.exit("paceline needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv .venv-newest .venv-oldest .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests tools papers -name __pycache__ -type d -prune -exec rm -rf {} +
