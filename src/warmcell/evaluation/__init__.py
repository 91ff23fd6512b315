"""Evaluation: many tasks, many samples for each, verdicts in a file that survives interruptions, and pass@k."""
