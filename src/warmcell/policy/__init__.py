"""What a guest may do: the model, how it is built, what this host makes of it, and the plan it becomes."""
