.PHONY: test quick bench format clean

test:
	./scripts/test

quick:
	./scripts/test --quick

bench:
	.venv/bin/python benchmarks/process.py

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv build dist .coverage .*_cache .hypothesis
