"""The cages that a command can be put into, and which of them this host can build."""
