"""What a guest may do: the policy, its builder, its resolution on this host, and its compilation into a plan."""
