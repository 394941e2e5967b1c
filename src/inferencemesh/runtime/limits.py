"""The process's open-file limit: one stream needs two sockets, and the usual soft limit of 1,024 is soon reached."""

from __future__ import annotations

import resource


def raise_open_file_limit() -> int:
    """Raise the soft limit to the hard one, and return what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft
    return open_file_limit()


def open_file_limit() -> int:
    """The soft limit; a million where it is unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1_000_000
