"""Finds the application's queue: ``app.jobs:queue``, looked for from the current directory as ``python -m`` would.

An error inside the application's own modules is shown as it is: it is the application's, and a "not found" in its place
would send its author the wrong way.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.exits import Trouble

if TYPE_CHECKING:
    from types import ModuleType

    from redrive.queue import Queue


def load_queue(target: str) -> Queue:
    """Import the queue that *target* names.

    Raises:
        click.UsageError: when there is no such module or attribute, or it is no Queue.
        Trouble: when the module itself fails; its traceback is on stderr.
    """
    from redrive.queue import Queue

    name, _, path = target.partition(":")
    if not name or not path or "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".") or "app.jobs"
        raise click.UsageError(f"{target!r}: write module:attribute, e.g. {dotted}:{path or 'queue'}")
    module = _module(name)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"module {name!r} has no {path!r}{_queues(module, Queue)}")
        found = getattr(found, part)
    if not isinstance(found, Queue):
        raise click.UsageError(f"{target} is a {type(found).__qualname__}, not a redrive.Queue{_queues(module, Queue)}")
    return found


def _module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise click.UsageError(f"no module {name!r} ({error.msg}), looked for from {here}") from None
        raise _failed(name, error) from error
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> Trouble:
    from redrive.masking import mask_text

    frames = error.__traceback__
    while frames is not None and (
        frames.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or "importlib._bootstrap" in frames.tb_frame.f_code.co_filename
    ):
        frames = frames.tb_next
    shown = "".join(traceback.format_exception(type(error), error, frames))
    click.echo(mask_text(shown).rstrip(), err=True)
    return Trouble(f"importing {name!r} failed: see above")


def _queues(module: ModuleType, kind: type) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, kind))
    return f"; its queues: {', '.join(names)}" if names else "; it holds no queue: write `queue = Queue()` in it"
