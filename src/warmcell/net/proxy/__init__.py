"""The egress proxy: the only route from a process guest's programs to what the policy allows."""
