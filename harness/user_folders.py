"""Folders of the user who runs Seatrial: cache and state, and a key that proves who wrote a file.

State that commands act upon later (which hosts a run has taken) must come from this user: a run's
folder may have been sent by another person. So it is kept outside run folders, in

    $XDG_STATE_HOME/seatrial  (~/.local/state/seatrial)    mode 0700
      key                     32 random bytes, mode 0600, made when it is first needed

and each file has the HMAC-SHA256 of its content under that key. Other users of this machine can
neither read the key nor write there. A shared folder for temporary files is used only below a
folder whose owner and mode were checked.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import BedFailed
from harness.text.parsing import parse_json

KEY_BYTES = 32
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return the folder of class archives and compiled kernels; removing it costs time only."""
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "seatrial"


def state_folder() -> Path:
    """Return the folder of this user's state, which is made if it is not there.

    Raises BedFailed if it cannot be made, or is not this user's alone.
    """
    parent = Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state")
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return private_folder(parent / "seatrial", "set XDG_STATE_HOME to a folder of yours")
    except OSError as e:
        raise BedFailed(
            f"{e.filename or parent} cannot be used for Seatrial's state: {e.strerror}; set "
            "XDG_STATE_HOME to a folder of yours"
        ) from e


def private_folder(folder: Path, fix: str = "set TMPDIR") -> Path:
    """Make a folder that only this user can write to, or check that an existing one is such.

    Raises BedFailed if another user owns it or may write there, or if it is a link.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BedFailed(f"{folder} belongs to another user or is not a folder; remove it, or {fix}")
    if found.st_mode & OTHERS_MAY_WRITE:
        raise BedFailed(f"other users may write to {folder}; remove it, or {fix}")
    return folder


def write_signed(path: Path, content: Any) -> None:
    """Replace a file of the state folder by this content and its HMAC, atomically."""
    private_folder(path.parent)
    text = json.dumps(content, sort_keys=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps({"content": text, "hmac": _hmac(text)}) + "\n")
    os.replace(temporary, path)


def read_signed(path: Path) -> Any:
    """Return the content of a file that `write_signed` wrote; None if there is none.

    Raises BedFailed if this user's key did not sign it.
    """
    try:
        signed = parse_json(path.read_text(encoding="utf-8"))
        if hmac.compare_digest(str(signed["hmac"]), _hmac(str(signed["content"]))):
            return parse_json(signed["content"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise BedFailed(f"{path} cannot be read: {e}; remove it") from e
    raise BedFailed(f"{path} was not written by this user's Seatrial; remove it")


def _hmac(text: str) -> str:
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return this user's key, made by the first process that needs it; of several, a hard link
    decides."""
    path = state_folder() / "key"
    if not path.exists():
        with tempfile.NamedTemporaryFile(prefix=".key-", dir=path.parent) as made:  # mode 0600
            made.write(secrets.token_bytes(KEY_BYTES))
            made.flush()
            with suppress(FileExistsError):
                os.link(made.name, path)
    key = path.read_bytes()
    if len(key) != KEY_BYTES or path.lstat().st_mode & 0o077:
        raise BedFailed(f"{path} is not a key that only you can read; remove it")
    return key


def _home() -> Path:
    """Return the user's home; if this machine has none, a private folder for temporary files."""
    try:
        return Path.home()
    except RuntimeError:
        return private_folder(Path(tempfile.gettempdir()) / f"seatrial-{os.getuid()}")
