"""Many programs, many cases: what each came to, and whose fault it was."""
