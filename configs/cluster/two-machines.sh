#!/usr/bin/env bash
# Two machines without a scheduler. Run it on both, the first one's address in both places:
#
#     bash configs/cluster/two-machines.sh 0 10.0.0.1 my.csv     # on the first machine
#     bash configs/cluster/two-machines.sh 1 10.0.0.1 my.csv     # on the second
#
# Change: the address, and where they differ PROCESSES (processes on this machine; one a GPU if not given; the machines
# may differ), MACHINES, PORT (a free one on the first machine that the others may reach) and VENV (the folder of
# the virtual environment). Nobody has to name a network interface. Without a shared disk add --save-on-each-node.
set -euo pipefail

machine=${1:?number of this machine, from 0}
address=${2:?address of the first machine}
table=${3:?the table to learn from, e.g. my.csv}
shift 3
source "${VENV:-.venv}/bin/activate"

torchrun --nnodes "${MACHINES:-2}" --node-rank "$machine" --nproc-per-node "${PROCESSES:-gpu}" \
    --master-addr "$address" --master-port "${PORT:-29500}" \
    "$(dirname "$0")/../../run_classify.py" --data "$table" "$@"
