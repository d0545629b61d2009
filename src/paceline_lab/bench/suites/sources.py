"""The data files of suites: in a named folder, in the usual places, or on the hub.

The package contains none of them. Every file that is read is noted with its checksum, so that a run can name the source
of its prompts.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from paceline.errors import InputError
from paceline.files.reading import LARGEST_TEXT_BYTES, bounded, read_file
from paceline.targets import hub

DATA = "PACELINE_DATA"
"""The environment variable that names the data folder."""
USUAL = Path("..") / "shared" / "data"
"""The data folder beside the working folder, or beside the checkout of this file."""
TOKENIZERS = "tokenizers"
"""The folder of the data folder that holds tokenizers."""
BELOW = ("", "bench")
"""Files are looked for in the data folder and in this folder below it."""
CHECKOUT = Path(__file__).resolve().parents[4]
HUB = {"alpaca_eval.json": "tatsu-lab/alpaca_eval"}
"""Files that their authors keep on the hub as text -> the dataset."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON escapes half of a character."""


@dataclass(frozen=True)
class SourceRow:
    """One entry of a file, and how errors name it."""

    value: Any
    number: int
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        return self.value.get(name, default) if isinstance(self.value, dict) else default

    def text(self, name: str) -> str:
        """A text that it must have."""
        found = self.get(name)
        if not isinstance(found, str) or not found.strip():
            raise InputError(f"{self.where} has no text {name!r}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts that it must have."""
        found = self.get(name)
        if (
            not isinstance(found, list)
            or not found
            or any(not isinstance(one, str) or not one.strip() for one in found)
        ):
            raise InputError(f"{self.where} has no {name!r}: a list of texts")
        return tuple(found)


def references(row: SourceRow, turns: int) -> tuple[str, ...]:
    """A good answer to each turn, the first of several; none where a row has them in another form, or not for all."""
    found = row.get("reference")
    found = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    firsts = [one[0] if isinstance(one, list) and one else one for one in found]
    return tuple(firsts) if len(firsts) == turns and all(isinstance(one, str) for one in firsts) else ()


class Sources:
    """The data folder, and which of its files were read. A folder given as ``data`` is the only place; otherwise files
    that the usual places lack come from the hub."""

    def __init__(self, data: Path | None = None) -> None:
        self.folder = _folder(data)
        self._hub = data is None
        self.read: dict[str, str] = {}
        """File name -> the first 16 digits of its SHA-256."""

    def find(self, *names: str) -> Path | None:
        """The first of these files or folders that is there."""
        if self.folder is not None:
            for place in (self.folder / below / name for name in names for below in BELOW):
                if place.exists():
                    return place
        return next(filter(None, map(_download, names)), None) if self._hub else None

    def need(self, what: str, *names: str) -> Path:
        """`find`, or an error that says what is missing and where to put it."""
        found = self.find(*names)
        if found is not None:
            return found
        where = f"in {self.folder}" if self.folder is not None else "here: there is no data folder"
        if self._hub and not HUB.keys().isdisjoint(names):
            where += ", and the hub does not give it"
        raise InputError(f"{what} is not {where}; put it there as {names[0]}, or name its folder with --data DIR")

    def text(self, path: Path) -> str:
        """A file as text, unpacked where it is packed."""
        try:
            raw = content = read_file(path)
            if path.suffix == ".gz":
                with gzip.open(BytesIO(raw)) as file:
                    content = bounded(cast("BinaryIO", file), path, LARGEST_TEXT_BYTES)
            decoded = content.decode("utf8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            at = f"offset {error.start}"
            raise InputError(f"{path} is not UTF-8 text ({at}); convert it, for example with iconv") from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        inside = self.folder is not None and path.is_relative_to(self.folder)
        name = path.relative_to(self.folder).as_posix() if inside and self.folder is not None else path.name
        self.read[name] = hashlib.sha256(raw).hexdigest()[:16]
        return decoded

    def json(self, path: Path) -> Any:
        """A file that holds one JSON value."""
        try:
            return _value(self.text(path))
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {error.lineno}, is not JSON: {error.msg}") from None
        except ValueError as error:
            raise InputError(f"{path} cannot be read: {error}") from None

    def rows(self, path: Path) -> Iterator[SourceRow]:
        """A file of JSON lines, numbered as editors number them. Empty lines are skipped."""
        for number, line in enumerate(self.text(path).split("\n"), start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number},"
            try:
                yield SourceRow(_value(line), number, where)
            except json.JSONDecodeError as error:
                raise InputError(f"{where} is not JSON: {error.msg}; every line must be one JSON value") from None
            except ValueError as error:
                raise InputError(f"{where} cannot be read: {error}") from None


def _download(name: str) -> Path | None:
    """A file from the hub, or from its cache; None where neither has it."""
    if name not in HUB:
        return None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(HUB[name], name, repo_type="dataset", local_files_only=not hub.answers()))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        return None


def tokenizers_in(sources: Sources) -> dict[str, Path]:
    """The tokenizers of the data folder, by name."""
    folder = sources.find(TOKENIZERS)
    return {place.name: place for place in sorted(folder.iterdir()) if place.is_dir()} if folder is not None else {}


def _value(text: str) -> Any:
    """One unambiguous JSON value. JSONDecodeError where the text is not JSON, another ValueError where it is odd."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise InputError("it has half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise InputError("it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON's own reader silently drops the first of two values under one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"it has {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _folder(data: Path | None) -> Path | None:
    """The data folder. One that was named must be there."""
    for path, how in ((data, "--data"), (os.environ.get(DATA), DATA)):
        if path:
            if not Path(path).is_dir():
                raise InputError(f"there is no folder {path}, which {how} names as the data folder")
            return Path(path)
    return next((place.resolve() for place in (USUAL, CHECKOUT / USUAL) if place.is_dir()), None)
