"""The zygote: a warm interpreter that makes cells, serves many of them at once and never runs a guest's code."""
