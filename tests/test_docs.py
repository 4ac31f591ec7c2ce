"""The documentation: every block runs, every link leads somewhere, every setting and every command is the real one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

import redrive.settings
from pages import PAGES, ROOT, RUN, Session, blocks
from redrive import Queue
from redrive.cli import COMMANDS, cli
from redrive.settings import Settings
from redrive.store import Wishes

DOCS = ROOT / "docs"
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def read(name: str) -> str:
    return (ROOT / name).read_text()


# -- every block is run


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_the_page_does_what_the_page_says(name, request, tmp_path):
    page = blocks(ROOT / name)
    if not any(block.language in RUN and not block.not_run for block in page):
        return
    installs = any("redrive migrate" in block.text and not block.not_run for block in page)
    with Session(request.getfixturevalue("empty_db" if installs else "db"), tmp_path) as session:
        session.run(page)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_run_says_why_and_is_little(name):
    page = blocks(ROOT / name)
    left_out = [block for block in page if block.language in RUN and block.not_run]
    assert len(left_out) <= 3, [block.place for block in left_out]
    for before, block in zip([None, *page], page, strict=False):
        if block.language in ("", "text") and not block.not_run:
            assert before is not None, f"{block.place}: output of nothing"
            assert block.follows_on, f"{block.place}: name its language, or say what it is the output of"
            assert before.language in RUN, f"{block.place}: output of nothing"


# -- every link leads somewhere


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_the_page_leads_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name} links to {target}"


def test_every_page_can_be_reached_from_the_index_and_the_index_from_the_readme():
    linked = set(re.findall(r"\]\(([\w-]+\.md)", read("docs/index.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} == linked
    assert "docs/index.md" in read("README.md")


# -- what is named is real


def said_to_redrive(text: str) -> Iterator[tuple[str, str]]:
    """Each call of the command line in *text*: the command, and the rest of its line."""
    code = re.findall(r"(?ms)^ *```(?:console|bash|ini|dockerfile|yaml|text)\n(.*?)^ *```$", text)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    for part in code:
        joined = re.sub(r"\\\n\s*", "", part).replace('", "', " ")
        yield from re.findall(r"\bredrive ([a-z]+)\b([^\n|;&)]*)", joined)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_flag_on_the_page_exists(name):
    context = click.Context(cli)
    for command, rest in said_to_redrive(read(name)):
        assert command in COMMANDS, f"{name}: redrive {command}"
        found = cli.get_command(context, command)
        known = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known | {"--help"}, f"{name}: redrive {command}{rest}"


def test_every_command_is_described():
    pages = "\n".join(page.read_text() for page in PAGES)
    assert [command for command in COMMANDS if f"redrive {command}" not in pages] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_on_the_page_exists(name):
    known = {f"REDRIVE_{field.name.upper()}" for field in fields(Settings)}
    known |= {"REDRIVE_APP", "REDRIVE_ONCE", "REDRIVE_LOG_LEVEL"}
    assert set(re.findall(r"REDRIVE_[A-Z_]+\b", read(name).replace("REDRIVE_*", ""))) <= known


def settings_table() -> str:
    """The table of settings, from where they are defined."""
    module = ast.parse(Path(redrive.settings.__file__).read_text())
    body = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Settings").body
    said = {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in zip(body, body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    worker = cli.get_command(click.Context(cli), "worker")
    flags = {parameter.name: "`, `".join((*parameter.opts, *parameter.secondary_opts)) for parameter in worker.params}
    lines = ["| setting | variable | flag | default | what it is |", "|---|---|---|---|---|"]
    for field in fields(Settings):
        name = field.name
        default = shown(field.default)
        lines.append(f"| `{name}` | `REDRIVE_{name.upper()}` | `{flags[name]}` | {default} | {said[name]} |")
    return "\n".join(lines)


def shown(default: object) -> str:
    """A default as a human writes it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, float):
        return "0" if not default else f"{default / 86_400:g} d" if default >= 86_400 else f"{default:g} s"
    return str(default) if default and not isinstance(default, tuple) else ""


def test_the_table_of_settings_is_the_settings():
    table = settings_table()
    assert table in read("docs/settings.md"), f"put this into docs/settings.md:\n\n{table}"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("docs/handlers.md", set(inspect.signature(Queue.handler).parameters) - {"self", "kind"}),
        ("docs/enqueue.md", {*Wishes.__annotations__, "key", "connection"}),
    ],
)
def test_every_option_has_its_row(name, options):
    rows = set(re.findall(r"^\| `(\w+)`", read(name), re.MULTILINE))
    assert options <= rows, sorted(options - rows)
