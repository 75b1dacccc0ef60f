#!/bin/sh
# Removes the job from the mapping files of its GPUs, and waits until the agent has restored them.
# The next job then starts at the site's default clocks. Runs as root after the job's last
# process. It never fails and never waits longer than JOULECUT_WAIT_S, because a failing epilog
# drains the node.
dir=${JOULECUT_SLURM_DIR:-/run/joulecut/slurm}
board=${JOULECUT_STATE_DIR:-/var/lib/joulecut-agent}/owners
wait_s=${JOULECUT_WAIT_S:-10}
gpus=${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-${CUDA_VISIBLE_DEVICES:-}}}
job=${SLURM_JOB_ID:-}
[ -n "$gpus" ] && [ -n "$job" ] && [ -d "$dir" ] || exit 0
gpus=$(echo "$gpus" | tr ',' ' ')

# Root writes into directories of its own alone: no link, no other owner, no other writer.
own() { [ -n "$(find "$1" -maxdepth 0 -type d -user "$(id -u)" ! -perm /022 2>/dev/null)" ]; }
umask 022
if ! own "$dir" || { [ -e "$dir-jobs" ] && ! own "$dir-jobs"; }; then
    echo "joulecut: $dir or $dir-jobs is not a directory of this user alone: nothing is removed" >&2
    exit 0
fi
case $job in *[!0-9]*) ;; *) rm -f "$dir-jobs/$job" ;; esac
(
    flock -w 5 9 || echo "joulecut: $dir stays locked; writing without" >&2
    for gpu in $gpus; do
        case $gpu in *[!A-Za-z0-9.-]* | .* | '') continue ;; esac
        [ -f "$dir/$gpu" ] || continue
        left=$(grep -vx "$job" "$dir/$gpu")
        if [ -n "$left" ]; then echo "$left" >"$dir/$gpu"; else rm -f "$dir/$gpu"; fi
    done
) 9<"$dir"

# A line of the agent's file: NUMBER UUID held|free JOB, with JOB as the GPU's owner. A GPU of
# another job may be held; a GPU of this job, or one without an owner, may not.
waiting() {
    [ -f "$board" ] || return 1 # of the agent's user, who may plant a pipe or a link to a device
    agent=$(timeout 1 sed -n 's/^agent //p' "$board" 2>/dev/null)
    [ -n "$agent" ] && [ -d "/proc/$agent" ] || return 1 # no agent: leases run out by themselves
    for gpu in $gpus; do
        index=${gpu%%.*}
        timeout 1 grep -Eq "^($index [^ ]+|[0-9]+ $index) (held (-|$job)|free $job)\$" "$board" && return 0
    done
    return 1
}

tenths=$((wait_s * 10))
while waiting; do
    tenths=$((tenths - 1))
    if [ "$tenths" -lt 0 ]; then
        echo "joulecut: GPUs $gpus of job $job are not restored after $wait_s s" >&2
        break
    fi
    sleep 0.1
done
exit 0
