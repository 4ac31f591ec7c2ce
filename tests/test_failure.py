"""Any exception becomes short, storable text, with the line that says what it is."""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
import types

import pytest

from redrive import failure
from redrive.failure import LAST_ERROR_LIMIT, MESSAGE_LIMIT, TRACEBACK_LIMIT, describe


def raised(error, cause=None):
    """Raise *error*, so that it has a traceback."""
    if cause is not None:
        error.__cause__ = cause
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


class NotText(Exception):
    def __str__(self):
        return 3  # noqa: PLE0307


def endless(n=0):
    return endless(n + 1)


def ping(n):
    return pong(n + 1)


def pong(n):
    return ping(n + 1)


def recursion(start):
    try:
        start(0)
    except RecursionError as error:
        return error


def noted():
    error = ValueError("the reason")
    for n in range(50):
        error.add_note(f"{n}" * 400)
    return raised(error)


class Nameless(type):
    @property
    def __module__(cls):
        raise RuntimeError("no")


class Renamed(Exception):
    pass


Renamed.__qualname__ = "E\ud800\0"


AWKWARD = {
    "plain": lambda: raised(ValueError("no such user")),
    "nul": lambda: raised(ValueError("a\0b")),
    "surrogate": lambda: raised(ValueError("\ud800")),
    "bytes": lambda: raised(ValueError(b"\0\xff")),
    "hostile": lambda: raised(Hostile()),
    "not text": lambda: raised(NotText()),
    "huge": lambda: raised(ValueError("x" * 50_000_000)),
    "huge key": lambda: raised(KeyError("x" * 1_000_000)),
    "many lines": lambda: raised(ValueError("line\n" * 100_000)),
    "recursion": lambda: recursion(endless),
    "mutual recursion": lambda: recursion(ping),
    "group": lambda: raised(ExceptionGroup("several", [raised(ValueError(n)) for n in range(1000)])),
    "nested groups": lambda: raised(
        ExceptionGroup("a", [ExceptionGroup("b", [raised(ValueError("y" * 10_000))] * 99)] * 99)
    ),
    "notes": noted,
    "no traceback": lambda: ValueError("never raised"),
    "exit": lambda: raised(SystemExit(3)),
    "empty": lambda: raised(ValueError()),
    "syntax": lambda: raised(SyntaxError("bad", ("f.py", 1, 2, "x = = 1"))),
    "long name": lambda: raised(type("E" * 10_000, (Exception,), {})("m")),
    "odd name": lambda: raised(Renamed("m")),
    "nameless": lambda: raised(Nameless("Nameless", (Exception,), {})("m")),
    "unicode": lambda: raised(UnicodeDecodeError("utf-8", b"\xff" * 10_000, 0, 1, "bad")),
}


def stuff(text):
    return [text.error_type, text.message, text.traceback, text.last_error, text.fingerprint]


@pytest.mark.parametrize("name", AWKWARD)
def test_whatever_is_raised_can_be_stored_pe_02_pe_05(name):
    text = describe(AWKWARD[name]())
    for each in stuff(text):
        each.encode()
        assert "\0" not in each
    assert len(text.message) <= MESSAGE_LIMIT
    assert len(text.traceback) <= TRACEBACK_LIMIT
    assert len(text.last_error) <= LAST_ERROR_LIMIT
    assert len(text.error_type) <= 200
    assert len(text.fingerprint) == 16


@pytest.mark.parametrize("name", AWKWARD)
def test_the_last_error_always_says_type_and_message(name):
    text = describe(AWKWARD[name]())
    assert text.error_type in text.last_error
    assert text.message[:200].strip() in text.last_error


def test_a_plain_error_reads_as_python_prints_it():
    error = raised(ValueError("no such user"))
    text = describe(error)
    assert (text.error_type, text.message) == ("ValueError", "no such user")
    assert text.traceback.splitlines()[0] == "Traceback (most recent call last):"
    assert text.traceback.splitlines()[-1] == "ValueError: no such user"
    printed = [line for line in "".join(traceback.format_exception(error)).splitlines() if line.strip(" ~^")]
    assert text.traceback.splitlines() == printed


def test_an_error_of_a_module_is_named_with_it():
    assert describe(subprocess.TimeoutExpired("x", 1)).error_type == "subprocess.TimeoutExpired"
    assert describe(Hostile()).message == "<no message: its __str__ raised RuntimeError>"


def test_the_chain_of_causes_is_kept_and_the_error_stands_last():
    text = describe(raised(ValueError("outer"), cause=raised(KeyError("inner"))))
    assert text.traceback.index("KeyError: 'inner'") < text.traceback.index("direct cause")
    assert text.traceback.endswith("ValueError: outer")


def test_a_context_is_kept_unless_it_was_suppressed():
    outer = ValueError("outer")
    outer.__context__ = raised(KeyError("inner"))
    assert "During handling of the above" in describe(outer).traceback
    outer.__suppress_context__ = True
    assert "inner" not in describe(outer).traceback


def test_causes_in_a_circle_or_without_end_are_cut_pe_02():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert describe(one).traceback.count("ValueError: one") == 1
    error = ValueError("first")
    for n in range(5000):
        outer = ValueError(n)
        outer.__cause__ = error
        error = outer
    text = describe(error)
    assert "earlier causes left out" in text.traceback
    assert text.last_error.endswith("ValueError: 4999")


def test_a_group_shows_its_first_members():
    text = describe(AWKWARD["group"]())
    assert "ExceptionGroup: several (1000 sub-exceptions)" in text.last_error
    assert "[1 of 1000]" in text.traceback
    assert "ValueError: 4" in text.traceback


def test_a_deep_stack_keeps_head_and_tail_pe_05():
    text = describe(recursion(ping))
    assert "more frames ...]" in text.traceback or "more characters ...]" in text.traceback
    assert text.last_error.splitlines()[-1].startswith("RecursionError: ")


def test_a_message_of_50_mb_costs_next_to_nothing_pe_02():
    error = AWKWARD["huge"]()
    began = time.process_time()
    describe(error)
    assert time.process_time() - began < 0.5


def test_an_error_that_defies_description_is_still_described_pe_02(monkeypatch):
    monkeypatch.setattr(failure, "_stack", None)
    text = describe(raised(ValueError("x")))
    assert text.last_error == "ValueError: <cannot be described: TypeError>"


def users_code(source, name="app.mail"):
    """Run *source* as a module of the user's."""
    module = types.ModuleType(name)
    exec(compile(source, f"/srv/{name}.py", "exec"), module.__dict__)  # noqa: S102
    return module


def fingerprint_of(call, *args):
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001
        return describe(error).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user 7 not found", "user 123456 not found"),
        ("no such key 'alice'", "no such key 'bob smith'"),
        ('got "a"', 'got "b c"'),
        ("bounce from alice@example.com", "bounce from bob.b@mail.example.org"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-0000-0000-0000-000000000000"),
        ("<object at 0x7fa6216e7b90>", "<object at 0x7fa6216e7c11>"),
        ("commit a2d79e10b", "commit a22dd9c1"),
        ("took 1.5 s at 12:30:01", "took 22 s at 09:00:59"),
        ("a  b", "a\n b"),
    ],
)
def test_the_same_fault_has_the_same_fingerprint_whatever_its_particulars(one, other):
    assert fingerprint_of(raise_value, one) == fingerprint_of(raise_value, other)


def raise_value(message):
    raise ValueError(message)


def raise_value_elsewhere(message):
    raise ValueError(message)


def raise_type(message):
    raise TypeError(message)


def test_another_type_message_or_place_is_another_fault():
    prints = {
        fingerprint_of(raise_value, "a"),
        fingerprint_of(raise_value, "b"),
        fingerprint_of(raise_type, "a"),
        fingerprint_of(raise_value_elsewhere, "a"),
    }
    assert len(prints) == 4


def test_a_release_that_moves_lines_keeps_the_fingerprint():
    source = "def send():\n    raise ValueError('x')\n"
    before, after = users_code(source), users_code("\n\n# a comment\n" + source)
    assert fingerprint_of(before.send) == fingerprint_of(after.send)


def test_the_place_is_the_users_own_code_and_not_the_library_it_calls():
    users = users_code("import json\ndef one():\n    json.loads('{')\ndef two():\n    json.loads('{')\n")
    assert fingerprint_of(users.one) != fingerprint_of(users.two)
    ours = users_code("def run(call):\n    call()\n", "redrive.executor")
    assert fingerprint_of(users.one) == fingerprint_of(ours.run, users.one)


def test_the_fingerprint_is_the_same_in_every_process():
    code = "from redrive.failure import describe\ntry: int('x')\nexcept ValueError as e: print(describe(e).fingerprint)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != ""


@pytest.mark.parametrize("trouble", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_not_even_an_exit_within_str_leaves_an_error_without_words(trouble):
    """A Rust extension's panic is a BaseException too; the job would be left running."""

    class Panics(Exception):
        def __str__(self):
            raise trouble

    assert describe(Panics()).message == f"<no message: its __str__ raised {trouble.__name__}>"
