"""Jupyter kernels in a cage: `warmcell jupyter install`, then every Jupyter program has "Python (Warmcell)"."""
