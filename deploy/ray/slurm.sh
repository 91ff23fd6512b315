#!/bin/sh
# A Ray cluster for the time of one Slurm job, with one node of Ray on each machine, and a program that uses RayBackend.
#
#   sbatch --nodes=4 deploy/ray/slurm.sh evaluate.py
#
# Every machine needs the same virtual environment, at $VIRTUAL_ENV, with warmcell[ray].
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -eu
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | cut -d' ' -f1):6379
ray=$VIRTUAL_ENV/bin/ray
# Only this job's processes may join its cluster; srun passes both on.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$("$VIRTUAL_ENV/bin/python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN

srun --overlap --nodes=1 --ntasks=1 -w "$head" \
    "$ray" start --head --node-ip-address="${address%:*}" --port=6379 --block &
until "$ray" health-check --address "$address" 2>/dev/null; do sleep 1; done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --overlap --nodes="$((SLURM_JOB_NUM_NODES - 1))" --ntasks="$((SLURM_JOB_NUM_NODES - 1))" --exclude="$head" \
        "$ray" start --address="$address" --block &
fi
RAY_ADDRESS=$address "$VIRTUAL_ENV/bin/python" "$@"
