"""Payloads come back equal or are refused by their path; results are mended and never refused."""

from __future__ import annotations

import enum
import json
import math
import sys
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from redrive.errors import InvalidPayload
from redrive.payload import MAX_DEPTH, encode, encode_result


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Plain(enum.Enum):
    A = 1


class Model:
    pk = 7


@dataclass
class Welcome:
    to: str


class Loud(str):
    __slots__ = ()


Point = namedtuple("Point", "x y")  # noqa: PYI024 - how users write them


def nested(depth, core=None):
    for _ in range(depth):
        core = [core]
    return core


LOOP: list = []
LOOP.append({"again": LOOP})

COME_BACK = [
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    -(2**70),
    10**4299,
    0.1,
    -0.0,
    1e15,
    9007199254740993,
    1e16,
    1e22,
    5e-324,
    1.7e-308,
    123456789012345.67,
    "",
    "é 😀 \u2028 \x7f \x01",
    "\\u0000 is text, as is e+5",
    [],
    {},
    [[], {}, [None]],
    {"": {"a b": [1, {"c.d": 2}]}},
    {"to": "user@example.com", "i": 7},
    Colour.RED,
    Size.BIG,
    {Colour.RED: [Size.BIG, Colour.RED]},
    Loud("x"),
    OrderedDict([("b", 1), ("a", 2)]),
    defaultdict(list, {"a": [1]}),
    [[1]] * 1000,
    nested(MAX_DEPTH),
]

REFUSED = [
    # what, its path, a word of the remedy
    ({"user": {"name": [1, 2, 3, "a\0b"]}}, "payload.user.name[3]", "NUL"),
    ("\0", "payload", "replace"),
    ({"a": {"x\0": 1}}, "payload.a", "NUL"),
    ({"a": ["\ud800"]}, "payload.a[0]", "surrogate"),
    ("\ud83d\ude00", "payload", "surrogate"),
    ({"\udfff": 1}, "payload", "surrogate"),
    ([math.nan], "payload[0]", "None or text"),
    ({"a": math.inf}, "payload.a", "None or text"),
    ({"a": -math.inf, "b": {1}}, "payload.a", "inf"),
    ({"a": {1: 2}}, "payload.a", "str keys"),
    ({None: 1}, "payload", "str keys"),
    ({True: 1}, "payload", "str keys"),
    ({(1, 2): 1}, "payload", "str keys"),
    ((1, 2), "payload", "list"),
    ({"odd key": [(1, (2,))]}, 'payload["odd key"][0]', "list"),
    (Point(1, 2), "payload", "list"),
    ({"s": {1, 2}}, "payload.s", "sorted"),
    ({"s": frozenset()}, "payload.s", "sorted"),
    (b"x", "payload", "base64"),
    (bytearray(b"x"), "payload", "base64"),
    (datetime(2024, 1, 1, tzinfo=UTC), "payload", "isoformat"),
    (date(2024, 1, 1), "payload", "isoformat"),
    (time(1, 2), "payload", "isoformat"),
    (timedelta(1), "payload", "total_seconds"),
    (UUID(int=1), "payload", "str(value)"),
    (Decimal("1.10"), "payload", "str(value)"),
    (Path("a"), "payload", "str(value)"),
    (Plain.A, "payload", "value.value"),
    ({"m": Model()}, "payload.m", "primary key"),
    ({"w": Welcome("x")}, "payload.w", "annotated with its class"),
    (1j, "payload", "real"),
    ({}.keys(), "payload", "list(value)"),
    (object(), "payload", "text, numbers"),
    ({"f": 1e23}, "payload.f", "another number"),
    (-1.7976931348623157e308, "payload", "another number"),
    (10**4300, "payload", "digits"),
    ({"n": [-(10**4300)]}, "payload.n[0]", "digits"),
    (LOOP, None, "holds itself"),
    (nested(MAX_DEPTH + 1), None, "nested deeper"),
    (nested(100_000), None, "nested deeper"),
    ({"to": "x", "rest": [1] * 300 + nested(MAX_DEPTH)}, None, "nested deeper"),
    ("x" * 1_000_000, "payload", "1,000,002 bytes"),
    ("é" * 600_000, "payload", "pass a reference"),
]


@pytest.mark.parametrize("value", COME_BACK, ids=range(len(COME_BACK)))
def test_what_passes_comes_back_equal_pe_07(value):
    text = encode(value)
    assert json.loads(text) == value
    assert json.loads(text) == json.loads(json.dumps(value))


@pytest.mark.parametrize(("value", "path", "remedy"), REFUSED, ids=[f"{row[1]}-{row[2]}" for row in REFUSED])
def test_what_cannot_is_refused_with_its_path_and_a_remedy_pe_01_pe_04_pe_07(value, path, remedy):
    with pytest.raises(InvalidPayload) as caught:
        encode(value)
    message = str(caught.value)
    assert remedy in message
    assert len(message) < 500
    assert caught.value.path in message
    if path is not None:
        assert caught.value.path == path


def test_the_path_of_a_deep_fault_stays_short():
    with pytest.raises(InvalidPayload, match="more characters") as caught:
        encode({"a" * 1000: nested(MAX_DEPTH - 1, "\0")})
    assert len(caught.value.path) <= 200


def test_a_value_of_which_nothing_is_equal_is_refused():
    class Never(dict):
        __hash__ = None

        def __eq__(self, other):
            return False

    with pytest.raises(InvalidPayload, match="changed"):
        encode(Never(a=1))


def test_an_int_too_long_for_a_worker_is_refused_where_this_process_has_no_limit():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(InvalidPayload, match="digits"):
            encode(10**4300)
    finally:
        sys.set_int_max_str_digits(before)


def test_json_is_compact_and_not_escaped():
    assert encode({"a": [1, "é"]}) == '{"a":[1,"é"]}'


def test_the_limit_counts_bytes_and_can_be_moved():
    assert encode("é" * 4, limit=10) == '"éééé"'
    with pytest.raises(InvalidPayload, match="11 bytes of JSON and the limit is 10"):
        encode("éééé1", limit=10)


def test_a_message_never_shows_a_value_that_may_be_secret_op_04():
    with pytest.raises(InvalidPayload) as caught:
        encode({"password": "hunter2\0"})
    assert "hunter2" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner)
        | st.tuples(inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(JSON)
def test_encode_accepts_only_what_comes_back_equal_pe_07(value):
    try:
        text = encode(value)
    except InvalidPayload as refusal:
        assert refusal.path.startswith("payload")  # noqa: PT017 - either is right
        return
    assert json.loads(text) == value
    assert "\\u0000" not in text.replace("\\\\", "")
    text.encode()


class Hostile:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        (None, None),
        ({"a": 1}, {"a": 1}),
        ({"x": "\0"}, {"x": "\ufffd"}),
        ({"\0": "\ud800"}, {"\ufffd": "\ufffd"}),
        (math.nan, None),
        ([1.5, math.inf], [1.5, None]),
        ((1, (2, {3})), [1, [2, [3]]]),
        ({1: 2}, {"1": 2}),
        ({(1, 2): 3, None: 4}, {"(1, 2)": 3, "null": 4}),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
        (Decimal("1.10"), "1.10"),
        ([UUID(int=0)], ["00000000-0000-0000-0000-000000000000"]),
        (Plain.A, 1),
        (Welcome("x"), "Welcome(to='x')"),
        (Hostile(), "<unprintable Hostile>"),
        ({"a": Hostile()}, {"a": "<unprintable Hostile>"}),
        (10**5000, "<int of 16610 bits>"),
        ("x" * 64_000, {"redrive_truncated": {"type": "str", "bytes": 64_002, "limit": 64_000}}),
        (b"x" * 10_000, "b'" + "x" * 498),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_is_mended_and_never_refused_pe_02_pe_04(result, stored):
    text = encode_result(result)
    assert (None if text is None else json.loads(text)) == stored


@pytest.mark.parametrize("result", [LOOP, nested(600), nested(100_000)], ids=["loop", "600", "100000"])
def test_a_result_without_end_is_cut_somewhere_pe_02(result):
    assert json.loads(encode_result(result))


@given(JSON)
def test_every_result_can_be_stored_pe_02(value):
    text = encode_result(value)
    if text is not None:
        assert len(text.encode()) <= 64_000
        assert "\\u0000" not in text.replace("\\\\", "")
        json.loads(text, parse_constant=pytest.fail)


def test_encoding_is_safe_in_many_threads_at_once():
    shared = {"a": [{"b": n} for n in range(50)]}
    expected = encode(shared)
    seen = set()

    def work():
        seen.update(encode(shared) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {expected}


def test_what_passes_comes_back_equal_from_jsonb_itself_pe_07(empty_db: str):
    """The rule about numbers is Postgres' own, so it is held against Postgres."""
    with psycopg.connect(empty_db) as conn:
        for value in COME_BACK:
            [stored] = conn.execute("select %s::jsonb", [encode(value)]).fetchone()
            assert stored == value, ascii(value)[:80]


def test_a_float_is_refused_exactly_where_jsonb_changes_it_pe_07(empty_db: str):
    mantissas = [1, -1, 1.5, 1 / 3, 0.1 + 0.2, 9.007199254740993]
    floats = [mantissa * 10.0**exponent for mantissa in mantissas for exponent in range(-330, 308, 3)]
    with psycopg.connect(empty_db) as conn:
        for value in floats:
            [stored] = conn.execute("select %s::jsonb", [Jsonb(value)]).fetchone()
            try:
                encode(value)
            except InvalidPayload:
                assert stored != value
            else:
                assert stored == value


def test_a_lazy_text_of_djangos_is_told_what_to_become():
    lazy = pytest.importorskip("django.utils.functional").lazystr("hello")
    with pytest.raises(InvalidPayload, match=r"payload\.subject is .* pass str\(value\)"):
        encode({"subject": lazy})
