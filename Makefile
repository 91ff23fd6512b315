.PHONY: test bench format clean

test:
	./scripts/test

bench:
	.venv/bin/python benchmarks/process.py

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv build dist .coverage .*_cache .hypothesis
