#!/bin/sh
# Writes the job id of each GPU: one file per GPU, one job id per line, also readable by
# dcgm-exporter. A record of the job (docs/slurm.md) goes into the directory beside. Runs as root on
# the node before the job's first process. It never fails, because a failing prolog drains the node.
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin:/opt/slurm/bin # Slurm sets none
dir=${JOULECUT_SLURM_DIR:-/run/joulecut/slurm}
gpus=${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-${CUDA_VISIBLE_DEVICES:-}}}
job=${SLURM_JOB_ID:-}
[ -n "$gpus" ] && [ -n "$job" ] || exit 0

# Name and array id, which no prolog is given, and the account, which some are not: the one answer
# of slurmctld within JOULECUT_ASK_S seconds. 0: it is not asked, by as many nodes as a job has, and
# no job waits for it. Without an answer they are unknown.
ask_s=${JOULECUT_ASK_S:-0} array='' account='' name=''
if [ "$ask_s" != 0 ]; then
    # The name comes last: it may hold anything. An array's first task has the id of all its tasks.
    said=$(timeout -k 1 "$ask_s" squeue --noheader --jobs="$job" --format='%A|%F_%K|%a|%j' 2>/dev/null \
        | grep -m 1 "^$job|") || echo "joulecut: slurmctld does not name job $job" >&2
    IFS='|' read -r _ array account name <<SAID
$said
SAID
    case $array in *_N/A) array='' ;; esac
    [ "$account" != '(null)' ] || account=''
fi

# Readable by all, writable by root only: the agent ignores any other directory.
# Root writes into directories of its own alone: no link, no other owner, no other writer.
own() { [ -n "$(find "$1" -maxdepth 0 -type d -user "$(id -u)" ! -perm /022 2>/dev/null)" ]; }
umask 022
mkdir -p "$dir" "$dir-jobs" 2>/dev/null
if ! own "$dir" || ! own "$dir-jobs"; then
    echo "joulecut: $dir or $dir-jobs is not a directory of this user alone: nothing is written" >&2
    exit 0
fi
field() { [ -z "$2" ] || printf '%s %s\n' "$1" "$(printf '%s' "$2" | tr '\n\r' '  ')"; }
case $job in *[!0-9]*) ;; *) # before the mapping files: the agent finds it with them
    {
        echo 'joulecut-slurm-job 1'
        field array_id "$array"
        field name "${SLURM_JOB_NAME:-$name}"
        field user "${SLURM_JOB_USER:-}"
        field account "${SLURM_JOB_ACCOUNT:-$account}"
        field partition "${SLURM_JOB_PARTITION:-}"
    } >"$dir-jobs/.$job" && mv -f "$dir-jobs/.$job" "$dir-jobs/$job"
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
