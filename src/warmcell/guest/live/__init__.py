"""The agent of a live cage and what it starts by forking itself. All of it runs inside; nobody imports it."""
