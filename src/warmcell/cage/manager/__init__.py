"""The manager: makes cells with the help of a zygote, supervises them, and reports how they ended."""
