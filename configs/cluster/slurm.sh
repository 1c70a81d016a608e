#!/usr/bin/env bash
# Two machines with four GPUs each, under SLURM:
#
#     sbatch configs/cluster/slurm.sh my.csv
#
# Change: --nodes and --ntasks-per-node (one task a GPU, so the latter equals --gpus-per-node), --cpus-per-task, --time,
# and VENV, the folder of the virtual environment. All machines must see this folder and the table.
# Arguments after the table are passed to the program: sbatch configs/cluster/slurm.sh my.csv --epochs 5
#SBATCH --job-name=classify
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --output=classify-%j.log
# Two minutes before the time is up the program is told, finishes its step, saves and exits with 143; see the end.
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail

table=${1:?the table to learn from, e.g. my.csv}
shift
source "${VENV:-.venv}/bin/activate"
# srun does not take these over from sbatch by itself.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
# Where the ranks meet: the first machine of the job.
MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export MASTER_ADDR

# srun starts the tasks and tells each its rank. Without srun this script would be one process on the first machine.
code=0
srun --kill-on-bad-exit=1 python run_classify.py --data "$table" --output-dir "runs/slurm-$SLURM_JOB_ID" --resume "$@" ||
    code=$?
if [ "$code" = 143 ]; then # the time was up: once more, from the checkpoint
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
