"""Texts that no other process makes."""

from __future__ import annotations

import itertools
import os


class UniqueTexts:
    """Each call gives another text, also apart from those of a process that was forked from this one."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Begin anew, as another process."""
        self._process = os.urandom(8).hex()
        self._numbers = itertools.count()

    def __call__(self) -> str:
        """The next text."""
        return f"{self._process}-{next(self._numbers)}"
