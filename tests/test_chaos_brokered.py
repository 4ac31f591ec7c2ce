"""`make chaos-broker`: its checker can fail, its plan can be repeated, and a short run of it is a proof of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.brokered import invariants, section
from chaos.brokered.faults import STRIKE
from chaos.brokered.invariants import judge, repeats
from chaos.brokered.plan import GRAND, RELAYS, SMALL, TOLD, plan
from chaos.brokered.stage import Balancer
from chaos.evidence import EVERYBODY, Change, Evidence, Failure, Life, Row, Try
from chaos.report import Circumstances

ROOT = Path(__file__).parent.parent
A, B = "host:10:aaaaaa", "host:11:bbbbbb"
BROKER = "amqp broker"


def change(order, job, was, now, **columns):
    return Change(order, float(order), job, job, "quick", was, now, **columns)


def good() -> Evidence:
    """One job succeeded over the broker, one came home and died, one ran twice since its worker was killed."""
    evidence = Evidence(5.0, 10.0, acknowledged={1, 2, 3}, rolled_back={9})
    evidence.ways = {"one": "network", "two": "direct", RELAYS[0]: "network"}
    evidence.lives = [
        Life(10, "one", 0.0, ended=105.1, killed=105.0),
        Life(11, "two", 0.0),
        Life(12, RELAYS[0], 0.0),
    ]
    evidence.changes = [
        change(1, 1, None, "pending"),
        change(2, 1, "pending", None),
        change(3, 2, None, "pending"),
        change(4, 2, "pending", "running", claims_was=0, claims=1, holder=BROKER),
        change(5, 2, "running", "running", claims_was=1, claims=1, holder_was=BROKER, holder=A),
        change(6, 2, "running", "dead", claims_was=1, claims=1),
    ]
    evidence.rows = {2: Row(2, 2, "quick", "dead", 1, 1, 1, 0, "as told")}
    evidence.failures = [Failure(2, 1, 1, "dead", "RuntimeError", A)]
    evidence.tries = [
        Try(1, 1, 1, A, 50.0, 50.1, "returned"),
        Try(2, 2, 1, A, 50.0, 50.1, "RuntimeError"),
        Try(3, 3, 1, A, 104.0),
        Try(3, 3, 1, B, 106.0, 106.1, "returned"),
    ]
    return evidence


def found(evidence: Evidence, left: int = 0) -> list[str]:
    return [name for name, broken in judge(7, evidence, [], left).violations.items() if broken]


def test_what_was_sent_twice_since_its_relay_was_killed_may_run_twice_long_after():
    """And only that: the relay's death explains what was being sent then."""
    evidence = good()
    run_again_long_after(evidence)
    evidence.changes[1] = change(2, 1, "pending", None, claims_was=0)
    assert "unexplained" in found(evidence)
    evidence.lives[2] = Life(12, RELAYS[0], 0.0, ended=1.6, killed=1.5)
    assert found(evidence) == []
    evidence.changes[1] = replace(evidence.changes[1], at=30.0)
    assert "unexplained" in found(evidence)


def test_what_was_sent_twice_since_the_broker_was_killed_may_run_twice_long_after():
    evidence = good()
    run_again_long_after(evidence)
    evidence.changes[1] = change(2, 1, "pending", None, claims_was=0)
    evidence.cut_off = [(EVERYBODY, 0.5, 1.0)]
    assert found(evidence) == []


def test_of_a_good_run_nothing_is_broken_and_the_second_run_has_its_reason():
    assert found(good()) == []
    assert [each.why for each in repeats(good())] == ["killed"]


def lose(evidence):
    evidence.tries = [each for each in evidence.tries if each.n != 1]


def forget_a_death(evidence):
    evidence.rows.clear()


def leave_at_the_broker(evidence):
    evidence.rows[4] = Row(4, 4, "quick", "running", 1, 5, 1, 0, None)


def run_twice_for_nothing(evidence):
    evidence.tries.append(Try(1, 1, 1, B, 51.0, 51.1, "returned"))


def run_again_long_after(evidence):
    evidence.tries.append(Try(1, 1, 1, B, 110.0, 110.1, "returned"))


def change_hands(evidence):
    evidence.changes[4] = replace(evidence.changes[4], holder_was=B)


def come_back_from_an_end(evidence):
    evidence.changes.append(change(7, 2, "dead", "pending"))


def run_what_was_rolled_back(evidence):
    evidence.tries.append(Try(9, 9, 1, B, 1.0, 1.1, "returned"))


@pytest.mark.parametrize(
    ("breaks", "name"),
    [
        (lose, "unfinished"),
        (forget_a_death, "unfinished"),
        (leave_at_the_broker, "left_running"),
        (run_twice_for_nothing, "unexplained"),
        (run_again_long_after, "unexplained"),
        (change_hands, "illegal_edge"),
        (come_back_from_an_end, "illegal_edge"),
        (run_what_was_rolled_back, "rolled_back_ran"),
    ],
)
def test_what_breaks_a_statement_is_found(breaks, name):
    evidence = good()
    breaks(evidence)
    assert found(evidence) == [name]


def test_messages_that_are_left_are_found():
    assert found(good(), left=1) == ["left_running"]


@pytest.mark.parametrize(
    ("hits", "why"),
    [
        (lambda evidence: evidence.cut_off.append(("*", 49.0, 49.5)), "cut off"),
        (lambda evidence: evidence.outages.append((49.0, 49.5)), "its relay was without Postgres"),
        (lambda evidence: setattr(evidence.lives[2], "killed", 49.5), "its relay was killed, frozen or stopped"),
        (lambda evidence: evidence.cut_off.append((f"slot {RELAYS[0]}", 49.0, 49.5)), "its relay was cut off"),
        (lambda evidence: evidence.cut_off.append(("*", 20.0, 20.5)), ""),
        (lambda evidence: setattr(evidence.lives[2], "killed", 20.0), ""),
    ],
)
def test_only_what_was_hit_close_in_time_is_a_reason_to_run_twice(hits, why):
    evidence = good()
    run_twice_for_nothing(evidence)
    hits(evidence)
    assert why in [each.why for each in repeats(evidence) if each.first.n == 1]


def test_a_plan_can_be_repeated_and_has_every_fault_in_it():
    assert plan(7, 600) == plan(7, 600) != plan(8, 600)
    assert {fault.name for fault in plan(7, 600)} == {*SMALL, *GRAND} == set(TOLD)
    assert set(TOLD) <= set(STRIKE)
    assert {fault.name for fault in plan(7, 600) if fault.grand} == set(GRAND)


def test_a_balancer_leads_to_whoever_answers():
    with socket.create_server(("127.0.0.1", 0)) as living, socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
        closed.close()
        with Balancer([dead, living.getsockname()[1]]) as way:
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", way.port)) as client:
                    server, _ = living.accept()
                    client.sendall(b"x")
                    assert server.recv(1) == b"x"
                    server.close()


def test_the_section_is_renewed_where_it_stands(tmp_path, monkeypatch):
    verdict = judge(7, good(), [], 0)
    how = Circumstances(60.0, "18", "0.1.0", {}, [], 60.0, rabbitmq="3.10.8")
    monkeypatch.setattr(section, "RESULTS", tmp_path / "brokered.json")
    assert section.section() == []
    section.RESULTS.write_text(json.dumps(section.results(verdict, how, 3, invariants.finished_twice(good()))))
    page = tmp_path / "chaos.md"
    for before in ("# The proof\n\nwords\n", "# The proof\n\nwords\n\n## Beside its peers\n\nothers\n"):
        page.write_text(before)
        section.renew(page)
        once = page.read_text()
        section.renew(page)
        assert page.read_text() == once
        assert once.startswith("# The proof\n\nwords\n\n## Over a broker\n")
        assert once.count("## Over a broker") == 1
        assert "RabbitMQ 3.10.8 (3 nodes)" in " ".join(once.split())
        assert once.count("others") == before.count("others")
    assert once.index("## Over a broker") < once.index("## Beside its peers")


@pytest.mark.proof
def test_a_short_run_loses_nothing(rabbitmq_scripts):
    command = [sys.executable, "-m", "chaos.brokered", "--seconds", "40", "--seed", "3", "--nodes", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    line = json.loads(done.stdout.splitlines()[-1])
    assert (line["lost"], line["unexplained_duplicates"]) == (0, 0)
    assert line["jobs"] > 500
