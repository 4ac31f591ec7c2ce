"""Typed payloads: what is annotated comes back as it was, or is refused by the name of its field."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidOption, InvalidPayload
from redrive.payload import encode
from redrive.typed import decoder_for, dump

T = TypeVar("T")
UserId = NewType("UserId", int)
BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"
    NUMBER = 2


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    s: str = ""
    i: int = 0
    f: float = 0.0
    b: bool = False
    n: None = None
    anything: Any = None
    ints: list[int] = field(default_factory=list)
    more: Sequence[str] = field(default_factory=list)
    by_name: dict[str, Tree] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    run: tuple[int, ...] = ()
    tags: set[str] = field(default_factory=set)
    frozen: frozenset[int] = frozenset()
    maybe: int | None = None
    either: int | str | Tree = 0
    literal: Literal["x", 3] = "x"
    colour: Colour = Colour.RED
    when: datetime | None = None
    day: date = date(2024, 1, 1)
    at: time = time(0)
    span: timedelta = timedelta(0)
    uuid: UUID = UUID(int=0)  # noqa: RUF009
    price: Decimal = Decimal(0)
    blob: bytes = b""
    user: UserId = UserId(0)
    noted: Annotated[int, "why"] = 0


@dataclass
class Text:
    s: str


@dataclass
class Moment:
    at: datetime


@dataclass(eq=False)
class Incomparable:
    n: int


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Strict:
    n: int
    twice: int = field(init=False)

    def __post_init__(self):
        if self.n < 0:
            raise ValueError("n is negative")
        self.twice = 2 * self.n


@dataclass
class HasComplex:
    c: complex


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Struct(msgspec.Struct):
    x: int
    y: int
    at: datetime | None = None


class Outer(msgspec.Struct):
    inner: Struct


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    x: int
    y: int = pydantic.Field(alias="why")
    at: datetime | None = None
    tags: set[str] = set()


class Hidden(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclass
class Mixed:
    struct: Struct
    model: Model


def there_and_back(value):
    return decoder_for(type(value))(json.loads(encode(dump(value))))


@pytest.mark.parametrize(
    "value",
    [
        Everything(),
        Everything(s="\u00e9", i=2**70, f=1.5, b=True, anything={"a": [1, None]}, ints=[1, 2], more=["a"]),
        Everything(f=3, by_name={"k": Tree("x", [Tree("y")])}, raw={"z": 1}, pair=(1, "a"), run=(1, 2, 3)),
        Everything(tags={"a", "b"}, frozen=frozenset({1}), maybe=3, either="x", literal=3, colour=Colour.NUMBER),
        Everything(either=Tree("x"), when=datetime(2030, 1, 31, 12, tzinfo=UTC), day=date(2030, 1, 31)),
        Everything(at=time(1, 2, 3), span=timedelta(days=3, microseconds=1), uuid=UUID(int=7)),
        Everything(price=Decimal("1.10"), blob=b"\0\xff", user=UserId(7), noted=2),
        Everything(when=datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), at=time(1, tzinfo=UTC)),
        Tree("a", [Tree("b", [Tree("c")])]),
        Box([1, 2]),
        Strict(3),
        Struct(1, 2, datetime(2030, 1, 1, tzinfo=UTC)),
        Outer(Struct(1, 2)),
        Model(x=1, why=2, at=datetime(2030, 1, 1, tzinfo=UTC), tags={"a"}),
        Mixed(Struct(1, 2), Model(x=1, why=2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_typed_payload_comes_back_the_same_pe_07(value):
    back = there_and_back(value)
    assert type(back) is type(value)
    if isinstance(value, Everything) and value.when is not None:
        # a time in the hour that the clocks repeat equals none of another zone, by definition
        assert back.when.isoformat() == value.when.isoformat()
        return
    assert back == value


def test_a_class_without_equality_comes_back_too():
    assert there_and_back(Incomparable(3)).n == 3


@given(
    st.builds(
        Everything,
        more=st.lists(st.text()),
        anything=st.none(),
        by_name=st.dictionaries(st.text(), st.builds(Tree, st.text(), st.just([]))),
        raw=st.dictionaries(st.text(), st.integers() | st.booleans() | st.none()),
        f=st.floats(-1e15, 1e15),
        either=st.integers() | st.text() | st.builds(Tree, st.text(), st.just([])),
        when=st.none() | st.datetimes(timezones=st.just(UTC)),
        span=st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
        price=st.decimals(allow_nan=False),
    )
)
def test_any_typed_payload_comes_back_the_same_or_is_refused_pe_07(value):
    try:
        text = encode(dump(value))
    except InvalidPayload as refusal:
        assert "NUL" in str(refusal)  # noqa: PT017 - either is right
        return
    assert decoder_for(Everything)(json.loads(text)) == value


@pytest.mark.parametrize(
    ("annotation", "data", "path", "words"),
    [
        (Struct, {"x": 1}, "payload", "`y`"),
        (Outer, {"inner": {"x": 1}}, "payload.inner", "`y`"),
        (Struct, {"x": 1, "y": "2"}, "payload.y", "int"),
        (Model, {"x": 1}, "payload.why", "required"),
        (Model, {"x": 1, "why": 1, "tags": [1]}, "payload.tags[0]", "string"),
        (Tree, {}, "payload.name", "missing"),
        (Tree, {"name": 3}, "payload.name", "must be text, not a number"),
        (Tree, {"name": "a", "children": [{"name": "b"}, {"nam": "c"}]}, "payload.children[1].name", "missing"),
        (Tree, {"name": "a", "childern": []}, "payload.childern", "did you mean 'children'?"),
        (Tree, {"name": "a", "zzz": []}, "payload.zzz", "no field of Tree"),
        (Tree, ["a"], "payload", "not a list"),
        (Tree, None, "payload", "not null"),
        (Everything, {"i": True}, "payload.i", "not a boolean"),
        (Everything, {"i": 1.0}, "payload.i", "whole number"),
        (Everything, {"f": "1"}, "payload.f", "a number, not text"),
        (Everything, {"f": 10**400}, "payload.f", "a number"),
        (Everything, {"b": 1}, "payload.b", "boolean"),
        (Everything, {"n": 0}, "payload.n", "null"),
        (Everything, {"ints": {"a": 1}}, "payload.ints", "not an object"),
        (Everything, {"by_name": {"k": 1}}, "payload.by_name.k", "fields of Tree"),
        (Everything, {"by_name": []}, "payload.by_name", "an object, not a list"),
        (Everything, {"pair": [1]}, "payload.pair", "a list of 2"),
        (Everything, {"run": [1, "2"]}, "payload.run[1]", "whole number"),
        (Everything, {"maybe": "x"}, "payload.maybe", "whole number, not text"),
        (Everything, {"either": 1.5}, "payload.either", "fits none of int or str or Tree"),
        (Everything, {"literal": "y"}, "payload.literal", "one of 'x', 3"),
        (Everything, {"colour": "blue"}, "payload.colour", "one of 'red', 2"),
        (Everything, {"when": "2030-01-01T00:00:00"}, "payload.when", "zone"),
        (Everything, {"day": "yesterday"}, "payload.day", "2030-01-31"),
        (Everything, {"at": 3}, "payload.at", "12:00:00"),
        (Everything, {"span": 1e300}, "payload.span", "seconds"),
        (Everything, {"uuid": "x"}, "payload.uuid", "UUID"),
        (Everything, {"price": "ten"}, "payload.price", "decimal"),
        (Everything, {"blob": "%"}, "payload.blob", "base64"),
        (Strict, {"n": -1}, "payload", "refused by Strict: n is negative"),
        (Options, {"b": "x"}, "payload.a", "missing"),
        (list[int], [1, "x"], "payload[1]", "whole number"),
        (set[Any], [[1]], "payload", "set"),
        (Tree | None, {"x": 1}, "payload.name", "missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field_sd_05(annotation, data, path, words):
    with pytest.raises(InvalidPayload) as caught:
        decoder_for(annotation)(data)
    assert caught.value.path == path
    assert words in str(caught.value)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Text(datetime(2030, 1, 1, tzinfo=UTC)), "payload.s would not come back"),
        (Text(3), "payload.s must be text"),
        (Moment(datetime(2030, 1, 1)), "payload.at is a datetime without a time zone"),  # noqa: DTZ001
        (Moment(date(2030, 1, 1)), "payload.at must be a date and time"),
        (Box((1, 2)), "payload.content would not come back"),
        (Everything(more=("a",)), "payload.more would not come back"),
        (Box({"a": [1, (2,)]}), r"payload.content.a\[1\] would not"),
        (Struct("1", 2), "payload.x"),
        (Hidden(password="x"), "payload.password would not come back"),
    ],
    ids=repr,
)
def test_a_field_of_the_wrong_type_is_refused_when_enqueued_pe_07(value, words):
    with pytest.raises(InvalidPayload, match=words):
        dump(value)


@pytest.mark.parametrize("value", [None, 3, {"when": datetime(2030, 1, 1, tzinfo=UTC)}, [Tree("a")], Tree], ids=repr)
def test_other_values_are_left_to_the_encoder(value):
    assert dump(value) is value


@pytest.mark.parametrize("annotation", [Any, object, inspect.Parameter.empty])
def test_an_annotation_that_promises_nothing_needs_no_decoder(annotation):
    assert decoder_for(annotation) is None


def test_a_typed_dict_and_plain_types_are_checked():
    assert decoder_for(Options)({"a": 1}) == {"a": 1}
    assert decoder_for(dict)({"a": [1]}) == {"a": [1]}
    assert decoder_for(dict[str, datetime])({"a": "2030-01-01T00:00:00Z"}) == {"a": datetime(2030, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (complex, "complex cannot be read from JSON"),
        (dict[int, str], "keys"),
        (HasComplex, "payload.c: complex"),
        (list[complex], "complex"),
    ],
)
def test_an_annotation_that_json_cannot_fill_is_refused_at_registration(annotation, words):
    with pytest.raises(InvalidOption, match=words):
        decoder_for(annotation)


def test_a_class_that_its_module_cannot_resolve_is_refused_with_the_reason():
    @dataclass
    class Inner:
        n: int

    @dataclass
    class Local:
        inner: Inner

    with pytest.raises(InvalidOption, match=r"annotated with Inner.*top of a module"):
        decoder_for(Local)


def test_a_refusal_never_shows_the_value_op_04():
    with pytest.raises(InvalidPayload) as caught:
        decoder_for(Everything)({"i": "hunter2"})
    assert "hunter2" not in str(caught.value)
