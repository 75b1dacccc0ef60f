#!/bin/sh
# Says whose each GPU is: one file a GPU, one job id a line, as dcgm-exporter reads them too.
# Runs as root on the node before the job's first process. It never fails: a prolog that does
# drains the node.
dir=${JOULECUT_SLURM_DIR:-/run/joulecut/slurm}
gpus=${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-${CUDA_VISIBLE_DEVICES:-}}}
job=${SLURM_JOB_ID:-}
[ -n "$gpus" ] && [ -n "$job" ] || exit 0

# Open to be read by everybody and written by root alone: the agent reads no other.
umask 022
mkdir -p "$dir" || exit 0
(
    flock -w 5 9 || echo "joulecut: $dir stays locked; writing without" >&2
    for gpu in $(echo "$gpus" | tr ',' ' '); do
        case $gpu in *[!A-Za-z0-9.-]* | .* | '') continue ;; esac
        grep -qsx "$job" "$dir/$gpu" || echo "$job" >>"$dir/$gpu"
    done
) 9<"$dir"
exit 0
