"""Forks of the host program, threads and cancellation, owned descriptors, clean-up at exit: here and nowhere else."""
