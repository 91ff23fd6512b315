"""`warmcell serve --ray`: one address for the nodes of a Ray cluster, each with a server of its own behind it."""
