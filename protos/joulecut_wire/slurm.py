"""A Slurm job as a node's prolog records it, and as the labels of its GPUs carry it.

The prolog writes one file a job: `joulecut-slurm-job 1`, then lines `KEY VALUE`. The first line
is the version. User and partition are Slurm's word; array id and name are the job's own,
and so is the account where Slurm keeps no accounts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

SOURCE = "slurm"  # of an allocation
VERSION = "joulecut-slurm-job 1"
TEXT_CHARS_MAX = 253  # of a value
# Labels of the GPUs of a job.
LABELS = {
    "id": "slurm_job_id",
    "array_id": "slurm_array_id",
    "name": "slurm_job_name",
    "user": "slurm_user",
    "account": "slurm_account",
    "partition": "slurm_partition",
}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job; "" is not known. `array_id` is `ARRAY_TASK`, as in `squeue`."""

    id: str
    array_id: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""

    def labels(self) -> dict[str, str]:
        """The labels of this job's GPUs."""
        return {label: text for key, label in LABELS.items() if (text := getattr(self, key))}


def of_labels(labels: Mapping[str, str]) -> SlurmJob:
    """The job that a GPU's labels name; without an id where they name none."""
    return SlurmJob(**{key: labels.get(label, "") for key, label in LABELS.items()})


def of_record(job: str, text: str) -> SlurmJob:
    """The job of a record. Lines of other versions, other keys and unprintable values are left
    out: the id, which is the file's name, is always known.
    """
    found = SlurmJob(job)
    version, *lines = text.split("\n")  # and at nothing else: a name may hold a form feed
    if version != VERSION:
        return found
    keys = {field.name for field in fields(SlurmJob)} - {"id"}
    for line in lines:
        key, _, value = line.partition(" ")
        if key in keys and value.isprintable():
            found = replace(found, **{key: value[:TEXT_CHARS_MAX]})
    return found
