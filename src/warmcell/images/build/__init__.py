"""Builds images from Dockerfiles or from steps; each step adds a layer."""
