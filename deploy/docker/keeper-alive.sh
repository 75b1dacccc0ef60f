#!/bin/sh
# Whether nobody has stopped the keeper whose state is in the directory $1 (SIGSTOP, a debugger): then
# no lease of it runs out, and no signal but the last reaches it. A kubelet that asks this ends such
# a one, and the next keeper gives back what it held.
#
# The keeper itself is not asked, and no Python is started: one that waits for a driver or a disk
# lives, and must not be ended for it. Which process it is, its lock tells (proc(5), locks).
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
