"""The agent of a live cage and the workers that it forks. The host imports only `frames` from here."""
