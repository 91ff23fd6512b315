"""The manager: makes cells with the help of a zygote, looks after them, and reports how they ended."""
