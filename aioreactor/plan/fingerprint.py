"""A short text that changes when a plan changes in a way that a stored run could notice."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioreactor.plan.model import Plan


def fingerprint(plan: Plan) -> str:
    """SHA-256 (first 16 hex digits) over names, kinds and edges, nested reactors included."""
    parts = [f"version={plan.options.version}"]
    for node in plan.nodes:
        edges = ",".join(plan.nodes[index].name for index in node.deps)
        inner = node.child.fingerprint if node.child is not None else ""
        parts.append(f"{node.name}|{node.kind}|{edges}|{inner}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
