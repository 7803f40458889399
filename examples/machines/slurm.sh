#!/bin/bash
# One evaluation on all nodes of an allocation: the driver on the first, a site on every node.
#   sbatch --nodes 8 --gpus-per-node 1 examples/machines/slurm.sh
#SBATCH --job-name hocket
#SBATCH --ntasks-per-node 1
#SBATCH --cpus-per-task 16
#SBATCH --time 04:00:00
set -euo pipefail

RUN=${RUN:-runs/$SLURM_JOB_ID}          # on a disk that all nodes see, or not: both work
PORT=${PORT:-7321}
KEY=$RUN.key

if [ -e "$RUN/ledger.sqlite" ]; then    # the job was requeued
    COMMAND=(hocket resume "$RUN")
else
    COMMAND=(hocket eval --env metaworld:mt10 --policy reference --episodes 50 --out "$RUN")
fi
"${COMMAND[@]}" --machines "listen:0.0.0.0:$PORT" --site.key-file "$KEY" &
DRIVER=$!
until [ -s "$KEY" ]; do sleep 1; kill -0 "$DRIVER"; done

srun hocket work --connect "wss://$(hostname):$PORT" --key-file "$KEY" --wait 300 &
wait "$DRIVER"
