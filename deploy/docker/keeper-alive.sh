#!/bin/sh
# Liveness probe of the keeper whose state is in the directory $1. It fails if the keeper is stopped
# (SIGSTOP, a debugger): then its leases do not run out, and it reacts to SIGKILL only. The kubelet kills
# such a keeper, and the next one restores its GPUs.
#
# The keeper is not contacted and no Python is started, because a keeper that waits for a driver or a
# disk must not be killed. Its lock gives the pid (proc(5), locks).
lock=$(stat -c %i "$1/keeper.lock") || exit 0 # no keeper has been here yet
while read -r _ kind _ _ pid place _; do
    if [ "$kind" = FLOCK ] && [ "${place##*:}" = "$lock" ]; then
        read -r stat <"/proc/$pid/stat" || exit 0
        state=${stat##*) }
        case ${state%% *} in
        [Tt])
            echo "the keeper, process $pid, is stopped"
            exit 1
            ;;
        esac
    fi
done </proc/locks
