# Everything a fresh machine needs is Python 3.11+, make and a package index.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all bench clean

demo: .venv/base
	$(BIN)/python -m dflash_sim.demo

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-all: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m ''

bench: .venv/dev
	$(BIN)/python benchmarks/simulator.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@ .venv/base

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis runs
