# Everything a fresh machine needs is Python 3.11+, make and a package index.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-train test test-all explore explore-all mutate bench validate validate-cpu validate-gpu validate-gpu8 validate-rehearsal \
	random-rehearsals clean

demo: .venv/base
	$(BIN)/python -m dflash_run.demo

# A few minutes on two cores: a small target, then a drafter trained 1 + 1 and 2 + 2; leaves runs/tiny-*.
demo-train: .venv/run
	$(BIN)/python -m dflash_run.tiny.demo

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist loadfile

test-all: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist loadfile -m ''

# Every interleaving of small pipelines and of the stop protocols, with the states of each; takes long.
explore: .venv/dev
	$(BIN)/python -m pytest -v -m '' tests/policies/test_explore.py tests/specimens

# The largest of them with one loss at any time; hours. Keeps what is done in runs/explored.jsonl and goes on from there.
explore-all: .venv/dev
	$(BIN)/python tests/policies/explore_all.py

# Mutates the dispatcher and the policies (docs/mutation.md); its own environment, its settings in pyproject.toml. The
# limit of memory (in KiB) stops mutants that collect for ever.
mutate: .venv-mutate/done
	rm -rf mutants
	ulimit -v 6000000; .venv-mutate/bin/mutmut run --max-children 2
	ulimit -v 6000000; .venv-mutate/bin/python tests/mutation.py

bench: .venv/dev .venv-compiled/done
	@echo "as installed by default, interpreted"
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/dispatcher.py
	@echo "compiled from the same source (DFLASH_COMPILE=1)"
	.venv-compiled/bin/python benchmarks/simulator.py
	@echo "the report of a week's run"
	$(BIN)/python benchmarks/report.py

# Twelve rehearsals of about 40 s beside their predictions, as docs/validation.md.
validate-rehearsal: .venv/base
	$(BIN)/python -m dflash_run.validate_rehearsal

# Predictions of small trainings, each from a profile taken just before it; about five minutes on two cores.
validate-cpu: .venv/run
	$(BIN)/python -m dflash_run.validation --part cpu

# The same on GPUs, a part at a time: make validate-gpu PART=one-gpu (or two-gpus, one-card, one-card-bucketed, one-card-slow, one-card-whole, colocated,
# four-cards). Cases that have a table are not run again, so that a part that was cut off goes on.
validate-gpu: .venv/run
	$(BIN)/python -m dflash_run.validation --part $(PART)

# The record's models and lengths on all GPUs of this host, 5 to 3 or what fits: PART=policies, steps or splits.
validate-gpu8: .venv/run
	$(BIN)/python -m dflash_run.validation --host $(PART)

# All predictions and tables under docs/validation worked out again from what was kept there; needs no GPU.
validate: .venv/run
	$(BIN)/python -m dflash_run.validation

# 900 random rehearsals with faults in threads and 100 with killed processes.
random-rehearsals: .venv/dev
	$(BIN)/python tests/run/test_random_rehearsals.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

.venv/run: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[run]'
	touch $@ .venv/base

.venv/dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@ .venv/base .venv/run

.venv-mutate/done: pyproject.toml
	test -x .venv-mutate/bin/python || $(PYTHON) -m venv .venv-mutate
	.venv-mutate/bin/python -m pip install -q --disable-pip-version-check '.[dev]' 'mutmut==3.8.1'
	.venv-mutate/bin/python -m pip uninstall -q -y dflash-pipeline
	touch $@

# The hot path compiled with mypyc; needs a C compiler. Not editable: the source here stays as it is.
.venv-compiled/done: pyproject.toml setup.py $(wildcard policies/*.py policies/*/*.py reports/*.py dflash_sim/*.py)
	test -x .venv-compiled/bin/python || $(PYTHON) -m venv .venv-compiled
	.venv-compiled/bin/python -m pip install -q --disable-pip-version-check . 'setuptools>=77' mypy
	DFLASH_COMPILE=1 .venv-compiled/bin/python -m pip install -q --disable-pip-version-check \
		--no-build-isolation --force-reinstall --no-deps .
	touch $@

clean:
	rm -rf .venv .venv-compiled .venv-mutate mutants build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis runs
