"""Reports and receipts over HTTP: what they take, and that they never fail with a traceback."""

import time
from pathlib import Path

import boards
import jsonschema
import pytest
import savings_store
from serving import Serving

from joulecut_controller.ports import Record
from joulecut_controller.savings.record import RECEIPT, REPORT
from joulecut_controller.store.database import open_store
from joulecut_controller.trust.window import TOPIC
from joulecut_controller.web.app import DOCUMENT


def test_a_report_has_every_job_of_policy_and_store(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    savings_store.fill(store, time.time())
    store.keep_record(Record(time.time(), TOPIC, "damaged", '{"job": "damaged"}'))
    with Serving(boards.board(), store=store) as served:
        told = served.get("/api/v1/report?since_s=604800&co2=400").json
        receipt = served.get("/api/v1/jobs/gpt3-175b/receipt").json
        job = served.get("/api/v1/jobs/nobody/receipt")
    store.close()
    schemas = {"components": DOCUMENT["components"]}
    for answer, schema in ((told, REPORT), (receipt, RECEIPT)):
        jsonschema.Draft202012Validator({**schemas, **schema.schema}).validate(answer)
    [of_policy] = {job.view.policy.name for job in boards.board().jobs}
    assert {job["job"] for job in told["jobs"]} == {*savings_store.JOBS, of_policy}
    assert told["factors"]["co2_g_per_kwh"] == 400.0
    assert [change["kind"] for change in receipt["changes"]] == ["apply", "clear", "apply"]
    assert receipt["report"]["job"] == "gpt3-175b"
    assert job.status == 404
    assert "nobody" in job.json["error"]


@pytest.mark.parametrize(
    "query", ["since_s=x", "since_s=-1", "since_s=1e99", "since_s=nan", "co2=0", "co2=" + "9" * 99]
)
def test_bad_queries_are_refused_in_one_sentence(query: str, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    with Serving(boards.board(), store=store) as served:
        for path in ("/api/v1/report", "/api/v1/jobs/j/receipt"):
            answer = served.get(f"{path}?{query}")
            assert answer.status == 400
            assert "must be a number" in answer.json["error"]
    store.close()


def test_without_a_store_and_before_the_first_pass_it_says_so(tmp_path: Path) -> None:
    with Serving(boards.board()) as served:
        assert served.get("/api/v1/report").status == 404
    store = open_store(f"sqlite:///{tmp_path}/c.db")
    with Serving(None, store=store) as served:
        assert served.get("/api/v1/report").status == 503
    store.close()
