"""Runs on the nodes of a Ray cluster: one actor for each node, requests and answers in batches."""
