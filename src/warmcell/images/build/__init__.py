"""Building images: steps that each add a layer, and the Dockerfiles that name them."""
