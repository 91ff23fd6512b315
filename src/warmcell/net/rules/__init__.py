"""Network policy: policies compile into one rule book. Decisions are pure."""
