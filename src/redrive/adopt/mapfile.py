"""The TOML file of a mapping: written with a word on every line, for a human to read, mend and hand back.

A question that only a human can answer stands in it as a question mark, and a file with one left is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.adopt.document import UNANSWERED
from redrive.adopt.mapping import MOMENTS, Mapping, parse
from redrive.errors import InvalidMap

if TYPE_CHECKING:
    from collections.abc import Mapping as Dict

HEAD = """\
How redrive works the table {table}: a proposal, for a human to read and mend before anything is connected.
Each line says what it is for. Lines with "?" are questions that the table can't answer: they must be."""
PARTS = {
    "runnable": "Which rows wait to be worked. Rows that don't match are never touched.",
    "times": "How times stand in the columns named here. A column of timestamps without a zone must have one.",
    "payload": "What the handler gets.",
    "attempts": "How many tries a row has, and which column counts them.",
    "error": "Where the last error is written; cut to its width.",
    "priority": "Who goes first. redrive has 0 (first) to 9, and 5 for what is ordinary.",
    "claimed": "Written when a worker takes the row: the old worker must not see it as waiting any more.",
    "waiting": "Written when a try has failed and another will follow, and when a row is handed back.",
    "succeeded": "Written when the job has succeeded, in the same commit.",
    "dead": "Written when it has failed for good and a human must look.",
}
LINES = {
    "table": "the table, with its schema",
    "key": "names a row; its text is the key of the row's job",
    "kind": "the kind of every row's job: register a handler by this name",
    "kind_column": "each row's kind: register a handler for every value in use",
    "created": "when the application made the row",
    "cutover": "rows made before it are left alone, unless you ask for a bucket of them",
    "due": "not before this time",
    "runnable.every_row": "a row waits for as long as it exists",
    "runnable.column": "the column that says so",
    "runnable.values": "these values wait",
    "runnable.null": "NULL waits too",
    "runnable.where": "SQL that must hold as well",
    "payload.form": "row, columns, json or json text",
    "attempts.column": "counts the tries that were made, and is written",
    "attempts.max": "tries in all",
    "attempts.max_column": "each row's own number of tries",
    "error.column": "gets the text of the error",
    "error.width": "characters that fit",
    "priority.first": "which numbers run first: low or high",
    "priority.normal": "the number of an ordinary row",
    "priority.words": "redrive's priority for each word",
}
FIELDS = {
    "set": "values",
    "now": "columns that get the time",
    "null": "columns that are emptied",
    "run_at": "columns that get the time of the next try",
    "later": "columns that get a time so many seconds ahead",
    "delete": "the row is deleted",
}
NOTHING = "nothing is written: the table has no word for it, redrive keeps it in a table of its own"
SHORT = 90
"""Characters of a remark that stands behind its line and not above it."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TIMES = ("cutover",)


def load(path: str | Path) -> Mapping:
    """Read a mapping from its file.

    Raises:
        InvalidMap: when it can't be read, or with all that is wrong in it.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidMap.of(str(path), [f"can't be read: {reason}"]) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidMap.of(str(path), [f"is no TOML: {error}"]) from error
    return parse(document, str(path))


def text(mapping: Mapping, notes: Dict[str, str] | None = None, questions: Dict[str, str] | None = None) -> str:
    """Write the file of a mapping.

    Args:
        mapping: what is known.
        notes: by the place of a line or part, such as ``attempts.max``, why it is proposed.
        questions: by the place of a line, what only a human can answer; a question mark stands there.
    """
    return "\n".join(_Writer(mapping, notes or {}, questions or {}).lines()) + "\n"


class _Writer:
    def __init__(self, mapping: Mapping, notes: Dict[str, str], questions: Dict[str, str]) -> None:
        self.mapping = mapping
        self.notes = notes
        self.questions = questions
        self.document = mapping.document()
        for place in questions:
            *path, name = _split(place)
            part = self.document
            for step in path:
                part = part.setdefault(step, {})
            part[name] = UNANSWERED

    def lines(self) -> list[str]:
        plain = {name: value for name, value in self.document.items() if not isinstance(value, dict)}
        order = [name for name in LINES if name in plain] + [name for name in plain if name not in LINES]
        found = [*_remark(HEAD.format(table=self.mapping.table)), ""]
        for name in order:
            found += self._line("", name, plain[name])
        for name, said in PARTS.items():
            part = self.document.get(name)
            if part or name in MOMENTS:
                found += ["", *_remark(said), *_remark(self.notes.get(name, "")), f"[{name}]"]
                found += self._part(name, part or {})
        return found

    def _part(self, name: str, part: dict[str, Any]) -> list[str]:
        if not part:
            return [f"# {NOTHING}"]
        return [line for each, value in part.items() for line in self._line(name, each, value)]

    def _line(self, part: str, name: str, value: Any) -> list[str]:
        place = f"{part}.{name}".strip(".")
        note = self.notes.get(place) or LINES.get(place) or (FIELDS.get(name, "") if part in MOMENTS else "")
        asked = [self.questions[each] for each in self.questions if f"{each}.".startswith(f"{place}.")]
        spelt = value if name in _TIMES and value != UNANSWERED else _spell(value)
        line = f"{_name(name)} = {spelt}"
        if asked:
            return [*_remark("QUESTION: " + " ".join(asked)), line]
        if len(note) > SHORT or "\n" in note:
            return [*_remark(note), line]
        return [f"{line}  # {note}" if note else line]


def _split(place: str) -> list[str]:
    """Take a place apart; columns may have dots in their names, and only the second part is a column."""
    first, _, rest = place.partition(".")
    if first == "times" and rest:
        column, _, last = rest.rpartition(".")
        return [first, column, last]
    return [first, *rest.split(".", 1)] if rest else [first]


def _remark(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in text.splitlines()]


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else _spell(name)


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_name(name)} = {_spell(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_spell, value)) + "]"
    # JSON's spelling of texts, numbers, true and false is TOML's, but for a control character that JSON leaves bare
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
