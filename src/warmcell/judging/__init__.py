"""Building a program once, running it on many cases, and verdicts."""
