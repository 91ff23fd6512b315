"""Ways to run a request. Siblings never import each other; `registry` finds them by name."""
