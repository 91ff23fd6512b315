"""The words that every room speaks. Standard library only."""
