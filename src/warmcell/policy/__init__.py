"""What a guest may do: the model, its builder, its resolution on this host, and the plan it becomes."""
