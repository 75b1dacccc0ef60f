"""Whose a job is, as a report shows it: by the policy's word first, then by what it matches."""

from dataclasses import replace

import boards

from joulecut_cli.report.stored import known_jobs
from joulecut_controller.policy.policy import PodMatch, SlurmJobMatch, Verify


def test_the_tenant_is_the_policys_word_or_what_its_entry_matches() -> None:
    policy = replace(boards.board().jobs[0].view.policy, verify=Verify(0.05))
    (known,) = known_jobs([policy]).values()
    assert (known.tenant, known.holdout) == ("-", 0.05)
    pods = replace(policy, pods=PodMatch("asked"))
    account = replace(policy, slurm=SlurmJobMatch(account="bio"))
    for entry, tenant in ((pods, "asked"), (account, "bio"), (replace(pods, tenant="own"), "own")):
        assert [one.tenant for one in known_jobs([entry]).values()] == [tenant]
