"""Small disks that can be filled: memory file systems that only this run sees, gone with its last process.

They need the right to mount, which root has outside of most containers, and an ordinary user where the kernel lets him
have a namespace of his own. Without it there is no such disk, and the run says so.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVE, _PRIVATE, _DETACH = 0x4000, 0x40000, 2
PAGE = bytes(1 << 20)


def own_mounts() -> str:
    """Give this process mounts of its own; to be called before it has threads. Returns why not, or nothing."""
    user, group = os.geteuid(), os.getegid()
    try:
        if user == 0:
            _call("unshare", _NEW_MOUNTS)
        else:
            _call("unshare", _NEW_MOUNTS | _NEW_USER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    except (OSError, AttributeError) as error:
        return f"no right to mount a small disk here ({error})"
    return ""


def mount(path: Path, megabytes: int) -> None:
    """Mount an empty disk of that size at *path*."""
    path.mkdir(exist_ok=True)
    _call("mount", b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={megabytes}m,mode=0711".encode())


def unmount(path: Path) -> None:
    """Take the disk away, whoever still has files open there."""
    _call("umount2", os.fsencode(path), _DETACH)


def fill(path: Path) -> Path:
    """Fill the disk to the last byte; gives the file to be deleted again."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(PAGE)
        except OSError:
            return filler


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
