# Two commands do the work: `make run` and `make test`. Both set up what they need, once.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MODEL  ?= demo
ARGS   ?=
TIME   ?= 60
# VLLM=no leaves vLLM and its tests out: 5 minutes and 3.5 GB less
VLLM   ?= yes
export TERAZI_VENV := $(abspath $(VENV))
export TERAZI_VLLM := $(VLLM)

.DEFAULT_GOAL := help
.PHONY: help run test check bench fuzz docs format clean setup-run setup-test setup-check setup-bench setup-fuzz

help:
	@echo "make run     set up, then weigh, launch and serve the demo model (MODEL=path/to/model.gguf for yours)"
	@echo "make test    set up, then run the tests, against the real engines (VLLM=no leaves vLLM out: 3.5 GB)"
	@echo "make check   style, types, import rules, declared dependencies, spelling, generated docs"
	@echo "make bench   the measurements in benchmarks/"
	@echo "make fuzz    throw hostile bytes at the readers of files and command lines (TIME=seconds)"
	@echo "make docs    write docs/reference from the code"

setup-run setup-test setup-check setup-bench setup-fuzz: setup-%:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "error: no $(PYTHON) here" >&2; echo "hint: install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Terazi needs Python 3.11 or newer, and this is $$($(PYTHON) -V 2>&1)" >&2; echo "hint: install a newer one, then name it: make PYTHON=python3.11 $*" >&2; exit 1; }
	@$(PYTHON) tools/setup.py $*

run: setup-run
	@exec $(BIN)/terazi up $(MODEL) $(ARGS)

test: setup-test
	$(BIN)/python -m pytest $(ARGS)

check: setup-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/codespell src tests docs tools benchmarks README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/python tools/reference.py --check

bench: setup-bench
	@for script in benchmarks/bench_*.py; do echo "== $$script"; PYTHONPATH=tests $(BIN)/python $$script || exit 1; done

fuzz: setup-fuzz
	$(BIN)/python tests/fuzz/fuzz.py $(TIME)

docs: setup-check
	$(BIN)/python tools/reference.py

format: setup-check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-vllm .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
