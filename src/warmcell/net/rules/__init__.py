"""What may go out: policies compile into one rule book, and every decision here is pure."""
