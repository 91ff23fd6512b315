"""The zygote: a warm interpreter that guests are copies of. It forks, and does nothing else."""
