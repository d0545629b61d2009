"""The hub from which models are downloaded, names of its models, and the progress bars of its libraries."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from paceline.errors import InputError, first_line

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
OTHERS = ("datasets", "spaces", "collections", "papers", "docs", "blog")
"""The first part of addresses on the hub that name no model."""
NAME = re.compile(r"(https?://|(www\.)?(huggingface\.co|hf\.co)/).+|[\w.-]+/[\w.-]+")
"""What may be the name or the address of a model of the hub."""
GGUF = re.compile(r"[-_.]gguf(:[^/]*)?$|:i?q\d[^/]*$", re.IGNORECASE)
"""How names of models for llama.cpp end."""

_shown = True


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no progress bars while models are loaded inside, in all threads; downloads keep theirs at a terminal."""
    global _shown
    before, _shown = _shown, False
    try:
        yield
    finally:
        _shown = before


@contextmanager
def loading() -> Iterator[None]:
    """While transformers loads weights: hides its progress bars if they are not to be shown."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as theirs

    if _shown or not theirs.is_progress_bar_enabled():
        yield
        return
    hidden = are_progress_bars_disabled()
    theirs.disable_progress_bar()  # which disables those of downloads as well
    if not hidden and sys.stderr.isatty():
        enable_progress_bars()
    try:
        yield
    finally:
        theirs.enable_progress_bar()
        if hidden:
            disable_progress_bars()


def answers() -> bool:
    """Whether the hub can be reached, asked once and through its own library: so mirrors, proxies, offline mode and
    HF_HUB_ETAG_TIMEOUT are those of the downloads. Where it cannot, ``local_files_only`` finds what was downloaded
    before, or fails at once; without it the library would wait half a minute for each file. A redirect to a login page
    counts as an answer."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT, follow_redirects=False)
    except Exception:  # the library's HTTP client, and so its errors, differ between versions
        return False
    return True


def repository(given: str) -> str:
    """The name of a model, of which the address may be given: ``ORG/NAME`` for ``https://huggingface.co/ORG/NAME``."""
    from huggingface_hub import constants

    has_scheme = "://" in given
    try:
        address = urlsplit(given if has_scheme else f"https://{given}")
    except ValueError:
        return given
    if address.netloc.lower() not in (*HOSTS, urlsplit(constants.ENDPOINT).netloc):
        if has_scheme:
            raise InputError(f"no model at {given!r}: give a folder, or ORG/NAME for a model of the hub")
        return given
    parts = [part for part in address.path.split("/") if part]
    if not parts or parts[0] in OTHERS or parts[2:] not in ([], ["tree", "main"]):
        raise InputError(f"no model at {given!r}: the address of a model is https://huggingface.co/ORG/NAME")
    return "/".join(parts[:2])


def downloaded(name: str, files: Sequence[str]) -> Path | None:
    """The folder in the library's cache with these files of a model, downloaded now if the hub answers; None where
    neither the hub nor the cache has such a model."""
    from huggingface_hub import snapshot_download

    model, offline = repository(name), not answers()
    try:
        return Path(snapshot_download(model, allow_patterns=[*files], local_files_only=offline))
    except MemoryError:
        raise
    except Exception as error:  # of the library, of its HTTP client, or of the file system of the cache
        if (why := _failure(error)) is None:
            return None
        raise InputError(f"{name!r} cannot be downloaded: {why}; mend this, or give a folder with its files") from None


def _failure(error: BaseException) -> str | None:
    """What went wrong in a download, in the hub's own words; None where there is no such model, or none that can be
    found without the hub."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if type(error) is LocalEntryNotFoundError:  # one of its subclasses says that some of the files are there
        answer = error.__cause__
        if not isinstance(answer, HfHubHTTPError) or answer.response.status_code == HTTPStatus.NOT_FOUND:
            return None
        error = answer
    gated = isinstance(error, GatedRepoError)  # which is a repository that was not found, too
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)) and not gated:
        return None
    said = getattr(error, "server_message", None) or first_line(error)
    return str(said).splitlines()[0].removesuffix(".")
