"""The dashboards in docs/grafana ask for what there is: metrics by the real page of metrics, SQL by running it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from engine import insert
from pages import ROOT
from redrive.metrics import OfFleet, OfWorker, Page
from redrive.tally import OUTCOMES, Tally
from test_metrics import FIGURES
from test_tally import ended

FILES = sorted((ROOT / "docs" / "grafana").glob("*.json"))
PROMETHEUS = ROOT / "docs" / "grafana" / "redrive-prometheus.json"
POSTGRES = ROOT / "docs" / "grafana" / "redrive-postgres.json"
# what Grafana's Postgres data source puts in, https://grafana.com/docs/grafana/latest/datasources/postgres/
MACROS = {
    r"\$__timeFilter\((\w+)\)": r"\1 BETWEEN now() - interval '6 hours' AND now()",
    r"\$__timeGroup\((\w+), *\$__interval\)": r"to_timestamp(floor(extract(epoch from \1) / 60) * 60)",
    r"\$kind": "'mail', 'it''s'",
}
# labels that Prometheus itself adds
ADDED = {"instance", "job"}
FUNCTIONS = {"sum", "max", "min", "by", "rate", "count", "or", "and", "histogram_quantile", "label_values", "without"}


def board(path: Any) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return] # a dashboard is an object


def targets(found: Any) -> Iterator[dict[str, Any]]:
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from targets(each)
    if isinstance(found, dict) and ("expr" in found or "rawSql" in found):
        yield found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dashboard_is_what_grafana_takes(path):
    found = board(path)
    assert found["schemaVersion"] >= 36
    assert found["id"] is None  # one that is set would overwrite another's
    assert re.fullmatch(r"[a-z0-9-]{1,40}", found["uid"])
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert place["h"] > 0
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["title"]
        assert panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert target["datasource"]["uid"] == "${datasource}"
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    names = {variable["name"] for variable in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)\}?", json.dumps(found)))
    assert used == names == {"datasource", "kind"}


def test_the_promql_asks_for_metrics_and_labels_that_are_told():
    tally = Tally()
    tally.succeeded([ended("mail")])
    text, _ = Page(OfWorker(tally.totals, {"worker": "w"}), OfFleet(lambda: FIGURES)).render()
    told: dict[str, set[str]] = {}
    for family in parse(text.decode()):
        for sample in family.samples:
            told.setdefault(sample.name, set()).update(sample.labels)
    # the gauges of a worker come from the worker: see test_metrics
    told |= {f"redrive_worker_{name}": set() for name in ("slots", "jobs_in_flight", "outcomes_waiting", "healthy")}
    asked = [target["expr"] for target in targets(board(PROMETHEUS))]
    asked.append(board(PROMETHEUS)["templating"]["list"][1]["definition"])
    assert len(asked) > 10
    for expr in asked:
        bare = re.sub(r'"[^"]*"', '""', expr)
        names = set(re.findall(r"redrive_\w+", bare))
        assert names, expr
        assert names <= told.keys(), expr
        labels = set(re.findall(r"(\w+)\s*=~?\s*\"", bare))
        labels |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", bare) for label in group.split(",")}
        known = set().union(*(told[name] for name in names)) | ADDED
        assert labels <= known, expr
        for outcome in re.findall(r'outcome=~?"([^"]*)"', expr):
            assert set(outcome.split("|")) <= set(OUTCOMES), expr
        assert bare.count("(") == bare.count(")")
        assert set(re.findall(r"\b([a-z_]+) ?\(", bare)) <= FUNCTIONS, expr


def test_the_sql_runs_and_answers_with_a_time_where_it_is_about_time(conn: psycopg.Connection):
    insert(conn, "mail", status="dead", last_error="ValueError: bad")
    insert(conn, "mail")
    conn.execute("insert into redrive.deploys values ('v1', now())")
    conn.execute(
        "insert into redrive.stats (minute, kind, worker, succeeded, retried, ran, runs, waits) "
        "values (date_trunc('minute', now()), 'mail', 'w', 60, 30, 90, '[30:30]={90}', '{90}')"
    )
    conn.execute(
        "insert into redrive.workers (name, host, pid, version, kinds, concurrency, lease, heartbeat_at) "
        "values ('w', 'h', 1, '1', '{mail}', 1, '1 hour', now())"
    )
    found = board(POSTGRES)
    asked = list(targets(found))
    assert len(asked) > 10
    for target in asked:
        sql = target["rawSql"]
        for macro, text in MACROS.items():
            sql = re.sub(macro, text, sql)
        assert "$" not in sql, sql
        cursor = conn.execute(sql)
        rows = cursor.fetchall()
        assert rows, sql
        columns = [column.name for column in cursor.description or ()]
        if target["format"] == "time_series" or target["refId"] == "Anno":
            assert columns[0] == "time", sql
        assert all(value is not None for value in rows[0][:2]), (sql, rows[0])
    variable = found["templating"]["list"][1]["query"]
    assert conn.execute(variable).fetchall() == [("mail",)]
