"""The keeper's lease machine as its tests drive it: one request at a time, and what comes of it."""

from collections.abc import Mapping
from typing import NamedTuple

from joulecut_agent.keeper import lease
from joulecut_agent.keeper.evidence import Verdict
from joulecut_agent.keeper.lease import Outcome, Restore, State, Write
from joulecut_agent.keeper.requests import Apply, Clear, Hold, Renew, Step, Yield

LeaseRequest = Apply | Step | Hold | Renew | Clear | Yield


class Done(NamedTuple):
    state: State
    reasons: Mapping[str, str]
    effects: tuple[Restore, ...]
    writes: tuple[Write, ...]

    @property
    def restores(self) -> tuple[tuple[str, str], ...]:
        return tuple((one.uuid, one.cause) for one in self.effects)


def apply_event(
    state: State, request: LeaseRequest | None, now_s: float,
    refused: Mapping[str, str] | None = None, seen: Verdict = Verdict.UNCLEAR,
) -> Done:  # fmt: skip
    """The passing of time, and one request after it; `refused` by bounds and device.

    `seen` is what the keeper reads at a `Yield`.
    """
    state = lease.end_expired(state, now_s)
    done = Outcome(state, {})
    match request:
        case Apply():
            done = lease.apply(state, request, now_s, refused or {})
        case Step():
            done = lease.step(state, request, now_s)
        case Hold():
            done = lease.hold(state, request, now_s)
        case Renew():
            done = lease.renew(state, request, now_s)
        case Clear():
            done = lease.clear(state, request, now_s)
        case Yield():
            done = lease.yield_(state, request, seen, now_s)
    return Done(done.state, done.reasons, lease.due_restores(done.state, now_s), done.writes)
