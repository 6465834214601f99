"""URLs of databases as they may be shown: to people, in logs and in errors."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit


def hide_password(url: str) -> str:
    """Write a URL without its password.

    >>> hide_password("postgresql://me:secret@db/app?schema=jobs")
    'postgresql://me:***@db/app?schema=jobs'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    user, at, host = parts.netloc.rpartition("@")
    if at and ":" in user:
        parts = parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}")
    if "password" in parts.query:
        query = [
            (name, "***" if "password" in name else value)
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        ]
        parts = parts._replace(query=urlencode(query, safe="*/,:", quote_via=quote))
    # Not urlunsplit for what has no host: sqlite:////file would lose two slashes.
    return urlunsplit(parts) if parts.netloc else url
