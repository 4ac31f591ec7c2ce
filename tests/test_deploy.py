"""The files of deploy/: they stand in docs/deploy.md, what they start exists, and may end in peace."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pages import ROOT
from redrive.cli import cli
from redrive.settings import Settings

DEPLOY = ROOT / "deploy"
ENOUGH = Settings().grace + 10
"""Seconds that a worker must be given to end."""


def manifests() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text())
    return {each["kind"]: each["spec"] for each in found}


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # systemd's names have capitals
    parser.read(DEPLOY / "systemd" / "shop-worker.service")
    return parser["Service"]


def pods() -> Iterator[dict[str, Any]]:
    found = manifests()
    yield found["Deployment"]["template"]["spec"]
    yield found["CronJob"]["jobTemplate"]["spec"]["template"]["spec"]


def commands() -> dict[str, list[str]]:
    """Every command line of redrive's that the files start."""
    found = {"systemd": shlex.split(unit()["ExecStart"])}
    for line in (DEPLOY / "Procfile").read_text().splitlines():
        name, _, command = line.partition(": ")
        found[f"Procfile {name}"] = shlex.split(command)
    for match in re.finditer(
        r"^(?:HEALTHCHECK .*)?CMD (\[.*\])$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE
    ):
        found[f"Dockerfile {match.start()}"] = json.loads(match[1])
    found |= {f"compose {name}": each["command"] for name, each in compose().items() if "command" in each}
    for pod in pods():
        for container in pod["containers"] + pod.get("initContainers", []):
            found[f"kubernetes {container['name']}"] = container["command"]
    return {where: line for where, line in found.items() if Path(line[0]).name == "redrive"}


def test_all_files_start_something_of_ours():
    assert len(commands()) == 9, sorted(commands())


@pytest.mark.parametrize("where", sorted(commands()))
def test_what_is_started_exists(where):
    _, name, *rest = commands()[where]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    command.make_context(name, list(rest))  # raises for a flag that there isn't


def test_stops_are_given_the_grace_and_ten_seconds_more():
    assert float(unit()["TimeoutStopSec"]) >= ENOUGH
    assert float(compose()["worker"]["stop_grace_period"].removesuffix("s")) >= ENOUGH
    assert next(pods())["terminationGracePeriodSeconds"] >= ENOUGH
    assert float(commands()["Procfile worker"][-1]) <= 30 - 10, "Heroku kills after thirty seconds"


def test_commands_are_lists_so_that_a_stop_reaches_the_worker_and_no_shell():
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if "CMD" in line and "CMD [" not in line] == []
    assert not any(isinstance(each.get("command"), str) for each in compose().values())


def test_the_unit_speaks_to_systemd_and_is_started_again():
    found = unit()
    assert (found["Type"], found["Restart"], found["KillMode"]) == ("notify", "always", "mixed")
    assert float(found["WatchdogSec"]) > 0
    assert found.get("NotifyAccess") is None, "main, as Type=notify has it: the parent of several speaks for all"


def test_systemd_itself_finds_no_fault_with_the_unit(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    text = (DEPLOY / "systemd" / "shop-worker.service").read_text()
    executable = tmp_path / "redrive"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    here = tmp_path / "shop-worker.service"
    here.write_text(text.replace("/srv/shop/.venv/bin/redrive", str(executable)).replace("User=shop\n", "User=root\n"))
    done = subprocess.run(
        [program, "verify", "--man=no", here], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "shop-worker" in line]) == (0, []), (
        done.stderr
    )


def test_probes_ask_the_port_that_is_answered_at_and_a_short_outage_kills_nobody():
    [worker] = next(pods())["containers"]
    port = {each["name"]: each["containerPort"] for each in worker["ports"]}
    for probe in (worker["readinessProbe"], worker["livenessProbe"]):
        assert probe["httpGet"]["path"] == "/health"
        assert str(port[probe["httpGet"]["port"]]) in worker["command"]
    assert worker["livenessProbe"]["periodSeconds"] * worker["livenessProbe"]["failureThreshold"] >= 300


def test_the_page_shows_the_files_as_they_are():
    page = (ROOT / "docs" / "deploy.md").read_text()
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    assert len(files) == 5
    assert [path.name for path in files if path.read_text() not in page] == []
