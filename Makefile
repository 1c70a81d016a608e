# `make run` trains on the sample data, `make test` the tests but for the slow ones; both set up .venv first.
# Needs python3 (3.11 to 3.13), make and pip; nothing else has to be installed by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A wheel in dist/; its name on an index is classify-text.
.PHONY: wheel
wheel: $(VENV)/installed
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

.PHONY: run test test-xla test-slow test-all torture audit lint check bench bench-quality bench-gpu clean
.DEFAULT_GOAL := run

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[tensorboard]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) -e '.[tensorboard,test]'
	touch $@

$(VENV)/installed-lint: $(VENV)/installed
	$(PIP) -e '.[tensorboard,lora,export,serve,lint]'
	touch $@

run: $(VENV)/installed
	$(BIN)/python run_classify.py --data data/tickets.csv

# Workers of pytest-xdist, one more than cores since tests often wait (WORKERS=0: one test after the other). A worker takes
# a whole file: fixtures are made once, and ports that documents name are taken by one test at a time. In the order of
# tests/conftest.py, so long files come first. Bytecode is kept, or each interpreter that a test starts would compile the program.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(1 + len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0)))')
PYTEST := PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The stand-ins for NPUs and CUDA devices are compiled once, before tests with time-outs would wait for that.
$(VENV)/standins: $(VENV)/installed-test $(wildcard tests/standins/accelerator/*)
	$(BIN)/python -m tests.support.standins npu cuda
	touch $@

test: $(VENV)/installed-test
	$(PYTEST)

# How tables are understood: each of tests/corpus, or of a folder of the same form (make corpus CORPUS=folder).
CORPUS ?= tests/corpus
.PHONY: corpus
corpus: $(VENV)/installed
	$(BIN)/python -m tests.support.corpus $(CORPUS)

# What takes more than eight seconds and is no invariant of training: schedulers, two machines, mocks of other vendors' devices,
# processes that are killed, whole guides, a table of a million rows, the wheel outside the checkout.
test-slow: $(VENV)/standins
	$(PYTEST) -m slow

# What people lose runs to, in half an hour: kill -9 and power at any moment, full disks, ranks that stall, losses that are not
# finite, files from strangers, pairs of runs, long runs. It ends with a table of figures.
torture: $(VENV)/standins
	$(PYTEST) -m "" tests/torture tests/distributed/test_stall.py tests/training/test_not_finite.py tests/training/test_collapse.py

test-all: test test-xla test-slow

# On XLA's own CPU device, as on a TPU. torch_xla wants the torch it was built with, so this is an environment of its
# own; on Linux pip takes a build of that torch with CUDA libraries along, several gigabytes.
XLA := .venv-xla
$(XLA)/installed: constraints.txt
	$(PYTHON) -m venv $(XLA)
	$(XLA)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir torch==2.9.0 torch_xla==2.9.0
	grep -v -E '^(torch|triton|setuptools|sympy|networkx|fsspec)==' constraints.txt > $(XLA)/requirements.txt
	$(XLA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(XLA)/requirements.txt
	$(XLA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

test-xla: $(XLA)/installed
	HF_HUB_OFFLINE=1 PJRT_DEVICE=CPU $(XLA)/bin/python -m pytest -q tests/xla

# The exact versions beside the known holes of osv.dev.
AUDIT := .venv-audit
audit:
	@if $(PYTHON) -c "import socket; socket.create_connection(('api.osv.dev', 443), 5)" 2> /dev/null; then \
		$(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit && \
		$(AUDIT)/bin/pip-audit --requirement constraints.txt --disable-pip --no-deps --vulnerability-service osv; \
	else \
		echo "note: api.osv.dev cannot be reached, so constraints.txt was not compared with known holes" >&2; \
	fi

lint: $(VENV)/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint configs/serve/Dockerfile
	@# Launchers' variables and ranks are read where the process group is made and nowhere else.
	@! grep -rnE 'LOCAL_RANK|get_rank|rank *[!=]= *|SLURM_|OMPI_|"RANK"|"WORLD_SIZE"' classify --include='*.py' \
		--exclude-dir=launch
	@! grep -rnE 'trust_remote_code=True|allow_pickle=True' classify --include='*.py'

# Training speed beside transformers' Trainer. Another table: make bench BENCH="--data my.csv --test-data mine-too.csv";
# the public sets of benchmarks/RESULTS.md, alone and in two processes: make bench SETS=folder (see benchmarks/sets.py).
BENCH ?= --data data/tickets.csv
SETS ?=

bench: $(VENV)/installed
ifeq ($(SETS),)
	$(BIN)/python benchmarks/training.py $(BENCH)
else
	$(BIN)/python benchmarks/sets.py $(SETS)
endif

# Accuracy beside other tools on public sets: make bench-quality SETS=folder (see benchmarks/quality.py). Peers are run
# again with QUALITY="--peers"; SetFit and AutoIntent want versions of their own.
QUALITY ?=
PEERS := .venv-setfit/installed .venv-autointent/installed
.venv-setfit/installed: PACKAGE := setfit==1.2.0
.venv-autointent/installed: PACKAGE := autointent[sentence-transformers]==0.4.0
$(PEERS): constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check '$(PACKAGE)'
	touch $@

bench-quality: $(VENV)/installed $(if $(findstring --peers,$(QUALITY)),$(PEERS))
	$(BIN)/python benchmarks/quality.py $(SETS) $(QUALITY)

# The same on a GPU, with bert-base's configuration and random weights, which serve for speed: a table of short texts in
# batches of 32, and long texts in batches of 256.
GPU_RACE := $(BIN)/python benchmarks/training.py --gpu --model random-bert-base

bench-gpu: $(VENV)/installed
	$(GPU_RACE) --epochs 3 $(BENCH)
	$(GPU_RACE) --generate 8192 --max-length 512 --batch-size 256 --test-rows 256 --store runs/benchmark-long.json

# Everything that must hold before a change lands.
check: lint test

clean:
	rm -rf $(VENV) $(XLA) $(AUDIT) $(dir $(PEERS)) runs dist build
