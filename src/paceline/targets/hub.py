"""The hub from which models are downloaded."""

from __future__ import annotations


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
