"""The egress proxy: how a process guest's own programs reach what the policy allows, and nothing else."""
