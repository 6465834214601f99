"""The bytes of request bodies in memory before their requests have slots, and which uploads are cut at the bound.

A pure ledger.  All bodies together never hold more than `bound`, and the bodies of one holder (a tenant, known by its
key or its address) never more than a quarter of it.  At a bound copies that are only kept for another try are dropped
first; then the slowest upload of the largest holder is cut, as often as it takes.  An upload that still comes in is
cut before a body that is complete.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

PARTS = 4  # a holder may have one of so many
MUCH = 16 * 1024 * 1024  # bytes for which it is worth to look for free memory


class Upload:
    """One body, as the ledger counts it; `cut` and `drop` are its owner's to fill in."""

    __slots__ = ("account", "began_at", "ended_at", "held", "holder")

    def __init__(self, holder: Hashable, now: float) -> None:
        self.holder = holder
        self.account: Account | None = None
        self.began_at = now
        self.ended_at = inf  # once it is complete
        self.held = 0

    def cut(self) -> None:
        """Learn that the upload is cut to make room; the ledger counts it no more."""

    def drop(self) -> None:
        """Learn that the spare copy is dropped to make room; the ledger counts it no more."""

    def slowness(self, now: float) -> tuple[bool, float]:
        """Order uploads: the least is the first to be cut."""
        took = min(self.ended_at, now) - self.began_at
        return self.ended_at < inf, self.held / took if took > 0 else inf


class Account:
    """What one holder has."""

    __slots__ = ("held", "spare", "uploads")

    def __init__(self) -> None:
        self.held = 0
        self.uploads: dict[Upload, None] = {}  # that may be cut
        self.spare: dict[Upload, None] = {}  # that may be dropped


class HeldBytes:
    """Count what bodies hold, within a bound."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.held = 0
        self.most = 0  # since the last ebb
        self._swelled = 0  # what was held when that was last told
        self.accounts: dict[Hashable, Account] = {}

    @property
    def share(self) -> int:
        """The most that one holder may have."""
        return self.bound // PARTS

    def spacious(self, upload: Upload) -> bool:
        """Whether bytes that need not be read yet may be: neither the holder nor all together are near a bound."""
        account = self.accounts.get(upload.holder)
        own = 0 if account is None else account.held
        return own * 2 < self.share and self.held * 2 < self.bound

    def take(self, upload: Upload, size: int, now: float) -> bool:
        """Count more bytes of an upload; False: the upload itself had to be cut, and holds nothing."""
        account = upload.account
        if account is None:
            account = self.accounts.setdefault(upload.holder, Account())
            upload.account = account
            account.uploads[upload] = None
        if account.held + size > self.share or self.held + size > self.bound:
            alone = upload.held + size > self.share  # then no other has to go
            if alone or not self._make_room(upload, account, size, now):
                if upload.account is not None:
                    self._cut(upload)
                return False
        upload.held += size
        account.held += size
        self.held += size
        if self.held > self.most:
            self.most = self.held
        return True

    def _make_room(self, upload: Upload, account: Account, size: int, now: float) -> bool:
        lines: dict[Account, Iterator[Upload]] = {}
        while True:
            if account.held + size > self.share:
                largest = account
            elif self.held + size > self.bound:
                largest = max(
                    (one for one in self.accounts.values() if one.uploads or one.spare),
                    key=lambda one: one.held + (size if one is account else 0),
                )
            else:
                return True
            if largest.spare:
                spare = next(iter(largest.spare))
                self.release(spare)
                spare.drop()
                continue
            if largest not in lines:
                # The bytes that are about to be counted have come: they are part of how fast the upload is.
                upload.held += size
                order = sorted(largest.uploads, key=lambda one: one.slowness(now))
                upload.held -= size
                lines[largest] = iter(order)
            victim = next(lines[largest])
            if victim is upload:
                return False
            self._cut(victim)

    def _cut(self, upload: Upload) -> None:
        self.release(upload)
        upload.cut()

    def complete(self, upload: Upload, now: float) -> None:
        """Note that all of a body is there."""
        upload.ended_at = now

    def admit(self, upload: Upload) -> None:
        """Cut this upload no more: its request has a slot."""
        if upload.account is not None:
            upload.account.uploads.pop(upload, None)

    def keep(self, upload: Upload) -> None:
        """Go on counting a body that was handed on; its copy may be dropped."""
        if upload.account is not None:
            upload.account.uploads.pop(upload, None)
            upload.account.spare[upload] = None

    def release(self, upload: Upload) -> None:
        """Count nothing of this upload any more."""
        account = upload.account
        if account is None:
            return
        upload.account = None
        account.uploads.pop(upload, None)
        account.spare.pop(upload, None)
        account.held -= upload.held
        self.held -= upload.held
        upload.held = 0
        empty = not (account.held or account.uploads or account.spare)
        if empty and self.accounts.get(upload.holder) is account:
            del self.accounts[upload.holder]

    def ebbed(self) -> bool:
        """Whether much was held and most of it is no more; true once for each flood."""
        if self.most < MUCH or self.held * PARTS > self.most:
            return False
        self.most = self._swelled = self.held
        return True

    def swelled(self) -> bool:
        """Whether much more is held than ever in this flood; true once for each step."""
        if self.held < self._swelled + MUCH:
            return False
        self._swelled = self.held
        return True
