"""What all Python adapters share: the handlers' bodies, the markers they leave, and the producer's lines of JSON.

No system's code in here. It runs in each system's own environment, on whatever Python that has, so it needs the
standard library alone. What it is told, in BENCH_* variables:

DSN      the database of this measurement
SCRATCH  where markers and records go
KIND     async | sync: which kind of handler to register
HANDLER  noop | record | sleep: what it does
PROFILE  bench | crash | crash_tuned: tuned for speed; defaults and five jobs at a time; the same, quick to recover
VARIANT  what the catalog says of this configuration
JOBS     after how many handler calls to leave the marker `all`
TUNE     name=value,...: another value for a knob, for finding the best ones
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import inspect
import itertools
import json
import logging
import os
import platform
import signal
import sys
import time
import traceback
from pathlib import Path

DSN = os.environ.get("BENCH_DSN", "")
SCRATCH = Path(os.environ["BENCH_SCRATCH"])
KIND = os.environ.get("BENCH_KIND", "async")
HANDLER = os.environ.get("BENCH_HANDLER", "noop")
PROFILE = os.environ.get("BENCH_PROFILE", "bench")
VARIANT = os.environ.get("BENCH_VARIANT", "")
JOBS = int(os.environ.get("BENCH_JOBS", "0"))
QUEUE = "bench"
CHUNK = 1000
AT_ONCE = 5
"""Jobs at a time in the crash scenarios, wherever that can be set."""
_DIE_WITH_PARENT = 1


def tune(name, default):
    """Give the default of a knob, or what TUNE says."""
    for part in os.environ.get("BENCH_TUNE", "").split(","):
        key, _, value = part.partition("=")
        if key.strip() == name:
            return type(default)(value)
    return default


# -- what handlers do


def _leave(name, said):
    draft = SCRATCH / f"{name}.draft"
    draft.write_text(said)
    draft.replace(SCRATCH / name)


def ready():
    """Say that the worker is about to work."""
    _leave("ready", repr(time.time()))


_calls = itertools.count(1).__next__  # atomic, for handlers in threads


def _called():
    number = _calls()
    if number == 1:
        _leave("first", json.dumps({"time": time.time(), "cpu": time.process_time()}))
    if number == JOBS:
        _leave("all", repr(time.time()))


@functools.cache
def _records():
    return os.open(SCRATCH / "records", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _record(line):
    os.write(_records(), line.encode())


def _begun(payload):
    if HANDLER == "record":
        now = time.time()
        _called()
        _record(f"{payload['ts']!r} {now!r}\n")
    elif HANDLER == "sleep":
        _called()
        _record(f"S {payload['i']}\n")
    else:
        _called()


async def handle(payload):
    """Be the body of every async handler."""
    if HANDLER == "noop":
        _called()
        return
    _begun(payload)
    if HANDLER == "sleep":
        await asyncio.sleep(payload["sleep"])
        _record(f"E {payload['i']}\n")


def handle_sync(payload):
    """Be the body of every sync handler."""
    if HANDLER == "noop":
        _called()
        return
    _begun(payload)
    if HANDLER == "sleep":
        time.sleep(payload["sleep"])
        _record(f"E {payload['i']}\n")


# -- the producer


def _payload(i, **more):
    return {"to": "user@example.com", "i": i, **more}


async def _now(result):
    return await result if inspect.isawaitable(result) else result


async def _produce(producer):
    loop = asyncio.get_running_loop()
    await _now(producer.connect())
    _reply({"ok": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            _reply(await _COMMANDS[command.pop("op")](producer, **command))
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must hear of it
            traceback.print_exc()
            _reply({"error": f"{type(error).__name__}: {error}"[:600]})
    if hasattr(producer, "close"):
        await _now(producer.close())


async def _one(producer, n):
    payloads = [_payload(i) for i in range(n)]
    begin = time.perf_counter()
    for payload in payloads:
        await _now(producer.one(payload))
    return {"n": n, "seconds": time.perf_counter() - begin}


async def _bulk(producer, n):
    payloads, chunk = [_payload(i) for i in range(n)], getattr(producer, "chunk", CHUNK)
    begin = time.perf_counter()
    for at in range(0, n, chunk):
        await _now(producer.bulk(payloads[at : at + chunk]))
    return {"n": n, "seconds": time.perf_counter() - begin}


async def _sleepers(producer, n, sleep):
    await _now(producer.bulk([_payload(i, sleep=sleep) for i in range(n)]))
    return {"n": n}


async def _pace(producer, groups, group, interval, cap):
    """Send *groups* on a fixed schedule; a producer that can't keep it falls behind, and `late` says how far."""
    begin, sent, late = time.time(), 0, 0.0
    for number in range(groups):
        due = begin + number * interval
        if (wait := due - time.time()) > 0:
            await asyncio.sleep(wait)
        now = time.time()
        late = max(late, now - due)
        if group == 1:
            await _now(producer.one(_payload(sent, ts=now)))
        else:
            await _now(producer.bulk([_payload(sent + k, ts=now) for k in range(group)]))
        sent += group
        if time.time() - begin > cap:
            break
    return {"n": sent, "begin": begin, "end": time.time(), "late": late}


_COMMANDS = {"one": _one, "bulk": _bulk, "sleepers": _sleepers, "pace": _pace}


def _reply(answer):
    # not sys.stdout, which is stderr by now: whatever a library prints must not come between the lines
    sys.__stdout__.write(json.dumps(answer) + "\n")
    sys.__stdout__.flush()


# -- the program


def _run(make, *, uvloop):
    factory = importlib.import_module("uvloop").new_event_loop if uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(make())


def _die_with_parent():
    """Have the kernel end this process with the driver, however that ends: no worker is left behind."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _versions(names):
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def serve(name, command):
    """Do what the driver asks of the adapter *name*."""
    _die_with_parent()
    sys.stdout = sys.stderr
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    adapter = importlib.import_module("adapters." + name)
    uvloop = getattr(adapter, "UVLOOP", True)
    if command == "info":
        _reply({**adapter.INFO, "versions": _versions(adapter.INFO["versions"])})
    elif command == "producer":
        _run(lambda: _produce(adapter.Producer()), uvloop=uvloop)
    elif command == "setup":
        _do(adapter.setup, uvloop=False)
    else:
        _do(adapter.work, uvloop=uvloop)


def _do(function, *, uvloop):
    if inspect.iscoroutinefunction(function):
        _run(function, uvloop=uvloop)
    else:
        function()
