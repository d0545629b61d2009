"""The hub that models without a folder come from."""

from __future__ import annotations


def answers() -> bool:
    """Whether the hub can be reached: asked once, through its own library, so that mirrors, proxies and offline mode
    are those of the downloads, and as patiently as HF_HUB_ETAG_TIMEOUT says. Where nobody answers, whoever goes on with
    ``local_files_only`` gets what was downloaded before, or an error at once; the library would ask each file for half
    a minute. An answer that leads elsewhere, to a page to log in, is one as well."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT, follow_redirects=False)
    except Exception:  # the errors of the client beneath, which is another one in every few versions
        return False
    return True
