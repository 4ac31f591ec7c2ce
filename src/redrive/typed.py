"""Payloads with a class: from an annotation to a decoder, from a value to plain JSON data.

Dataclasses and TypedDicts are read and written here; a `msgspec.Struct` and a pydantic model by their own
libraries, which are imported only once such a class turns up. What a decoder refuses is an `InvalidPayload`
naming the field. At run time that is an ordinary failure, which is retried: code and payload disagree while
a release rolls out, and the next worker to take the job may be the one that understands it.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from redrive.errors import InvalidOption, InvalidPayload

_Decode = Callable[[Any, str], Any]
_Memo = dict[Any, "_Fields"]

_decoders: dict[type, _Decode] = {}  # what `dump` has needed so far


def decoder_for(annotation: Any) -> Callable[[Any], Any] | None:
    """Make the function that turns JSON data into what a handler's *annotation* promises.

    None means that the annotation promises nothing (it is missing, or Any). An annotation that cannot be read
    from JSON is an `InvalidOption` now, when the handler is registered, and not at its first job.
    """
    if annotation in (inspect.Parameter.empty, Any, object):
        return None
    decode = _compile(annotation, "payload", {})
    return lambda value: decode(value, "payload")


def dump(value: Any) -> Any:
    """Write a dataclass, Struct or model as plain JSON data; return any other value as it is.

    What is written is read back at once and has to be the same, so that a field of the wrong type is refused
    here, where the mistake is, and not in a worker.
    """
    kind = type(value)
    if not (_is_dataclass(kind) or _is_struct(kind) or _is_model(kind)):
        return value
    data = _plain(value, "payload")
    if kind not in _decoders:
        _decoders[kind] = _compile(kind, "payload", {})
    path = _difference(_decoders[kind](data, "payload"), value, "payload")
    if path is not None:
        raise _invalid(path, "would not come back as it is: its type is not the annotated one")
    return data


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__")


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def _fields(kind: Any) -> list[str]:
    """Name what a value of this class is made with; nothing for any other class than the three sorts."""
    if _is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return list(kind.__struct_fields__ if _is_struct(kind) else kind.model_fields if _is_model(kind) else ())


def _plain(value: Any, path: str) -> Any:  # noqa: C901, PLR0911, PLR0912 - one rule a line
    """Write *value* as JSON data; what is no type of ours is left for `payload.encode` to judge."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if _is_model(kind):
        return value.model_dump(mode="json", by_alias=True)
    if _is_struct(kind):
        import msgspec  # noqa: PLC0415 - optional; it is there, or this class could not be

        return msgspec.to_builtins(value)
    if _is_dataclass(kind):
        return {name: _plain(getattr(value, name), f"{path}.{name}") for name in _fields(kind)}
    if isinstance(value, Enum):
        return _plain(value.value, path)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise _invalid(path, "is a datetime without a time zone: pass an aware one, as datetime.now(UTC)")
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (date, time, UUID, Decimal)):
        return str(value)  # of a date and a time, ISO 8601
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [_plain(item, path) for item in value]
    return value


def _difference(back: Any, given: Any, path: str) -> str | None:
    """Compare what came back with what was given and return the path of the first difference.

    Plain equality will not do: a dataclass may come without it, and a datetime in the hour that clocks repeat
    is never equal to one of another zone.
    """
    if isinstance(back, datetime) and isinstance(given, datetime):
        return None if back.isoformat() == given.isoformat() else path
    inner: list[tuple[Any, Any, str]] = []
    if type(back) is type(given):
        if names := _fields(type(back)):
            inner = [(getattr(back, name), getattr(given, name), f"{path}.{name}") for name in names]
        elif isinstance(back, (list, tuple)) and len(back) == len(given):
            inner = [(*pair, f"{path}[{i}]") for i, pair in enumerate(zip(back, given, strict=True))]
        elif isinstance(back, dict) and back.keys() == given.keys():
            inner = [(item, given[key], f"{path}.{key}") for key, item in back.items()]
    if inner:
        return next(filter(None, (_difference(*each) for each in inner)), None)
    return None if back == given else path


def _invalid(path: str, problem: str) -> InvalidPayload:
    return InvalidPayload(f"{path} {problem}", path=path)


def _compile(annotation: Any, where: str, memo: _Memo) -> _Decode:  # noqa: C901, PLR0911 - a rule a line
    """Turn *annotation* into a decoder; *memo* lets a class contain itself."""
    annotation = _bare(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    kind = origin or annotation
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin in (typing.Union, types.UnionType):
        return _union([_compile(item, where, memo) for item in arguments], arguments)
    if origin is typing.Literal:
        return _literal(arguments)
    if kind is tuple and not (len(arguments) == 2 and arguments[1] is ...) and arguments:  # noqa: PLR2004
        return _tuple([_compile(item, where, memo) for item in arguments])
    if kind in _COLLECTIONS:
        return _collection(_COLLECTIONS[kind], _compile(arguments[0] if arguments else Any, where, memo))
    if kind in (dict, Mapping):
        if arguments and arguments[0] not in (str, Any):
            raise InvalidOption(f"{where}: keys of {annotation} must be str, JSON has no others")
        return _mapping(_compile(arguments[1] if arguments else Any, where, memo))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if _is_model(kind):
        return functools.partial(_read_model, annotation)
    if _is_struct(kind):
        return functools.partial(_read_struct, annotation)
    if _is_dataclass(kind) or typing.is_typeddict(kind):
        if kind not in memo:
            memo[kind] = _Fields(kind)
            memo[kind].compile(where, memo)
        return memo[kind]
    raise InvalidOption(
        f"{where}: {_named(annotation)} cannot be read from JSON: annotate with a dataclass, msgspec.Struct,"
        " a pydantic model or what these are made of, or leave the annotation out"
    )


def _bare(annotation: Any) -> Any:
    """Take off what says nothing about JSON: Annotated, NewType, Required, TypeVar, aliases."""
    while True:
        if typing.get_origin(annotation) in (typing.Annotated, typing.Required, typing.NotRequired):
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        elif hasattr(annotation, "__value__") and not isinstance(annotation, type):
            annotation = annotation.__value__
        else:
            return types.NoneType if annotation is None else annotation


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


class _Fields:
    """The decoder of one dataclass or TypedDict."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.decoders: dict[str, _Decode] = {}
        self.required: list[str] = []

    def compile(self, where: str, memo: _Memo) -> None:
        kind = self.kind
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except NameError as error:
            raise InvalidOption(
                f"{where}: {kind.__name__} is annotated with {error.name}, which its module does not know:"
                " define the classes of a payload at the top of a module"
            ) from error
        if typing.is_typeddict(kind):
            # of annotations that are strings, __required_keys__ has not seen the NotRequired
            keys = kind.__required_keys__  # type: ignore[attr-defined]
            self.required = [key for key in keys if typing.get_origin(hints[key]) is not typing.NotRequired]
        else:
            fields = [field for field in dataclasses.fields(kind) if field.init]
            missing = dataclasses.MISSING
            self.required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
            hints = {field.name: hints[field.name] for field in fields}
        self.decoders = {name: _compile(hint, f"{where}.{name}", memo) for name, hint in hints.items()}

    def __call__(self, value: Any, path: str) -> Any:
        name = self.kind.__name__
        if not isinstance(value, dict):
            raise _mismatch(path, f"an object with the fields of {name}", value)
        for field in self.required:
            if field not in value:
                raise _invalid(f"{path}.{field}", f"is missing, and {name} requires it")
        read = {}
        for field, item in value.items():
            decode = self.decoders.get(field)
            if decode is None:
                near = difflib.get_close_matches(field, self.decoders, 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise _invalid(f"{path}.{field}", f"is no field of {name}{hint}")
            read[field] = decode(item, f"{path}.{field}")
        try:
            return self.kind(**read)
        except Exception as error:
            # whatever a __post_init__ raises, it refuses this payload
            raise _invalid(path, f"is refused by {name}: {error}") from error


def _mismatch(path: str, expected: str, value: Any) -> InvalidPayload:
    """Name the type that came and not the value, which may be a secret."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return _invalid(path, f"must be {expected}, not {names.get(type(value), 'a number')}")


def _from(kind: type, expected: str, read: Callable[[Any], Any]) -> _Decode:
    """Read *kind* of JSON value with a function that may find fault with it."""

    def decode(value: Any, path: str) -> Any:
        if type(value) is not kind and not (kind is float and type(value) is int):  # True is no int here
            raise _mismatch(path, expected, value)
        try:
            return read(value)
        except (ValueError, ArithmeticError):
            raise _invalid(path, f"must be {expected}") from None

    return decode


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError(text)
    return moment


_SCALARS: dict[Any, _Decode] = {
    Any: lambda value, _: value,
    object: lambda value, _: value,
    str: _from(str, "text", str),
    bool: _from(bool, "a boolean", bool),
    int: _from(int, "a whole number", int),
    types.NoneType: _from(types.NoneType, "null", lambda _: None),
    float: _from(float, "a number", float),
    datetime: _from(str, "a date and time with its zone in ISO 8601, as 2030-01-31T12:00:00+00:00", _aware),
    date: _from(str, "a date in ISO 8601, as 2030-01-31", date.fromisoformat),
    time: _from(str, "a time in ISO 8601, as 12:00:00", time.fromisoformat),
    timedelta: _from(float, "a number of seconds", lambda seconds: timedelta(seconds=seconds)),
    UUID: _from(str, "a UUID", UUID),
    Decimal: _from(str, "a decimal number as text", Decimal),
    bytes: _from(str, "bytes in base64", functools.partial(base64.b64decode, validate=True)),
}

_COLLECTIONS: dict[Any, Callable[[Any], Any]] = {
    list: list,
    Sequence: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}


def _collection(make: Callable[[Any], Any], item: _Decode) -> _Decode:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise _mismatch(path, "a list", value)
        try:
            return make([item(each, f"{path}[{index}]") for index, each in enumerate(value)])
        except TypeError:
            raise _invalid(path, "holds what cannot be part of a set") from None

    return decode


def _tuple(items: list[_Decode]) -> _Decode:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise _mismatch(path, f"a list of {len(items)}", value)
        return tuple(item(each, f"{path}[{i}]") for i, (item, each) in enumerate(zip(items, value, strict=True)))

    return decode


def _mapping(item: _Decode) -> _Decode:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(path, "an object", value)
        return {key: item(each, f"{path}.{key}") for key, each in value.items()}

    return decode


def _literal(allowed: tuple[Any, ...]) -> _Decode:
    def decode(value: Any, path: str) -> Any:
        for each in allowed:
            if type(each) is type(value) and each == value:
                return each
        raise _invalid(path, f"must be one of {', '.join(map(repr, allowed))}")

    return decode


def _enum(kind: type[Enum]) -> _Decode:
    members = [(_plain(member.value, ""), member) for member in kind]

    def decode(value: Any, path: str) -> Any:
        for plain, member in members:
            if type(plain) is type(value) and plain == value:
                return member
        raise _invalid(path, f"must be one of {', '.join(repr(plain) for plain, _ in members)}")

    return decode


def _union(members: list[_Decode], annotations: tuple[Any, ...]) -> _Decode:
    """Take the first member that fits; where one is None, the other's own complaint is the better one."""
    optional = types.NoneType in annotations and len(members) == 2  # noqa: PLR2004
    names = " or ".join(_named(annotation) for annotation in annotations)

    def decode(value: Any, path: str) -> Any:
        complaints = []
        for member in members:
            try:
                return member(value, path)
            except InvalidPayload as complaint:
                complaints.append(complaint)
        if optional and value is not None:
            raise complaints[1 if annotations[0] is types.NoneType else 0]
        raise _invalid(path, f"fits none of {names}: {'; '.join(map(str, complaints))}")

    return decode


def _read_struct(kind: Any, value: Any, path: str) -> Any:
    import msgspec  # noqa: PLC0415 - optional; it is there, or this class could not be

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        raise _invalid(path + at.removesuffix("`"), f"does not fit {_named(kind)}: {problem}") from error


def _read_model(kind: Any, value: Any, path: str) -> Any:
    """Let the model read JSON, not Python values: in strict mode too a date is text there."""
    try:
        return kind.model_validate_json(json.dumps(value))
    except sys.modules["pydantic"].ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in problems[0]["loc"]]
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems[:5])
        raise _invalid(path + "".join(steps), f"does not fit {_named(kind)}: {text}") from error
