"""The one run-time stand-in that typing needs: type variables with defaults, on Pythons that have none.

Type checkers see ``typing_extensions.TypeVar`` (PEP 696); at run time the default means nothing to us.
"""

from __future__ import annotations

import typing
from typing import Any

_PLAIN: Any = typing.TypeVar


def TypeVar(name: str, *, default: Any = None, **options: Any) -> Any:  # noqa: N802, ARG001 - stands in for the class
    """A ``typing.TypeVar`` without its default."""
    return _PLAIN(name, **options)
