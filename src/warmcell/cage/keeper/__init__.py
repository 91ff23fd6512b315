"""The keeper: the parent of a guest without namespaces. It enforces the limits and kills what the guest leaves."""
