.PHONY: test quick bench docs docs-serve format clean

test:
	./scripts/test

quick:
	./scripts/test --quick

bench:
	.venv/bin/python benchmarks/process.py

docs:
	./scripts/site

docs-serve:
	./scripts/site --serve

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv build dist .coverage .*_cache .hypothesis
