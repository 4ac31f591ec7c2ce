"""`redrive ui` as a program: where it listens, and when it does not start."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from redrive.cli.ui import loopback
from shell import complaint, redrive


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desk.example"])  # noqa: S104 - it is refused
def test_beyond_this_machine_it_does_not_start_without_a_password(db, host):
    said = complaint(redrive(db, "ui", "--host", host, code=2))
    assert f"--host {host} lets others in: set REDRIVE_UI_PASSWORD" in said


def test_a_short_password_is_refused(db):
    said = complaint(redrive(db, "ui", "--host", "0.0.0.0", code=2, env={"REDRIVE_UI_PASSWORD": "short"}))  # noqa: S104 - as above
    assert "has 5 characters: give at least 8" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_this_machine_has_several_names(host):
    assert loopback(host)


def test_without_its_extra_it_names_what_to_install(db, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'redrive[web]'" in complaint(redrive(db, "ui", code=1))


def test_a_port_that_is_taken_is_said(db):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = complaint(redrive(db, "ui", "--port", taken.getsockname()[1], code=1))
    assert "Address already in use; --port 0 takes a free one" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(db, number):
    command = [sys.executable, "-m", "redrive", "ui", "--port", "0", "--title", "staging"]
    env = {**os.environ, "DATABASE_URL": db, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout
        [port] = re.findall(r"http://127\.0\.0\.1:(\d+)/$", process.stdout.readline().strip())
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert (answer.status, b"staging" in answer.read()) == (200, True)
        assert "uvicorn" not in (answer.getheader("server") or "")
        connection.close()
        process.send_signal(number)
        _, complained = process.communicate(timeout=20)
        assert (process.returncode, complained) == (0, "")
    finally:
        process.kill()
        process.communicate()
