# Two commands do all the set-up: `make demo` and `make test`. Each makes .venv with what it needs if it is missing.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
N ?= 20000

.PHONY: demo test test-long fuzz fuzz-python lint bench notebooks clean

.venv/%.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

demo: .venv/demo.done
	$(BIN)/python examples/char_transformer.py

test: .venv/test,notebook,demo.done
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# What takes minutes more: every model at eleven budgets, on every backend; integer programs as oracles.
test-long: .venv/test,notebook,demo.done
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m long

# N random programs that alias and mutate, eager against compiled, on all cores; a difference is printed as a minimised program.
fuzz: .venv/test,notebook,demo.done
	$(BIN)/python -m tests.laws.fuzz $(N)

# The same of programs that read and write attributes, containers, globals and other Python state between calls; READS=--reads: of programs
# that read values of tensors.
fuzz-python: .venv/test,notebook,demo.done
	$(BIN)/python -m tests.laws.python_fuzz $(N) $(READS)

lint: .venv/test,notebook,demo.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check funcgrad benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# All tables, about an hour: most of it is torch.compile in fresh processes. BENCH="steady --only mlp --threads 1" for some of it.
bench: .venv/bench,demo.done
	$(BIN)/python -m benchmarks --json benchmarks/results/latest.json --plot benchmarks/results/latest.png $(BENCH)

notebooks: .venv/test,notebook,demo.done
	$(BIN)/jupytext --sync notebooks/*.py
	$(BIN)/python -m tests.test_notebook
	cd notebooks && ../$(BIN)/jupyter nbconvert --to html --output-dir ../build/notebooks *.ipynb

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache
