#!/bin/sh
# Writes the job id of each GPU: one file per GPU, one job id per line, also readable by
# dcgm-exporter. Runs as root on the node before the job's first process. It never fails, because
# a failing prolog drains the node. A comment with words for Joulecut goes into a directory beside.
dir=${JOULECUT_SLURM_DIR:-/run/joulecut/slurm}
gpus=${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-${CUDA_VISIBLE_DEVICES:-}}}
job=${SLURM_JOB_ID:-}
[ -n "$gpus" ] && [ -n "$job" ] || exit 0

# Readable by all, writable by root only: the agent ignores any other directory.
umask 022
mkdir -p "$dir" || exit 0
case ${SLURM_JOB_COMMENT:-} in
*joulecut.*) # before the mapping files: the agent reads it once
    case $job in *[!0-9]*) ;; *)
        mkdir -p "$dir-comments" && printf '%s\n' "$SLURM_JOB_COMMENT" >"$dir-comments/$job"
        ;;
    esac
    ;;
esac
(
    flock -w 5 9 || echo "joulecut: $dir stays locked; writing without" >&2
    for gpu in $(echo "$gpus" | tr ',' ' '); do
        case $gpu in *[!A-Za-z0-9.-]* | .* | '') continue ;; esac
        grep -qsx "$job" "$dir/$gpu" || echo "$job" >>"$dir/$gpu"
    done
) 9<"$dir"
exit 0
