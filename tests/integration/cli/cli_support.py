"""Types of this folder's fixtures. Imported by type checkers only."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from click.testing import Result

Started: TypeAlias = subprocess.CompletedProcess[str]
Start: TypeAlias = Callable[..., Started]
StartIn: TypeAlias = Callable[..., Started]
Invoke: TypeAlias = Callable[..., Result]
WriteModule: TypeAlias = Callable[[str, str], Path]
