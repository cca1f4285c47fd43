"""Durable runs in this process: created, leased, kept, found again, and taken over when their process died.

Overview. `DurableRuns.run` creates the record with its lease, executes under it, and closes it. Another process that
finds the lease at its end (`DurableRuns.recover`) takes the run with a lease of its own, which makes every later write
of the old holder be refused, restores the state from the record and goes on. A run that was already going back goes on
going back. `undo` takes a run that has ended and rolls back what still stands.
"""

from __future__ import annotations

from aioreactor.durable.anew import Anew
from aioreactor.durable.base import HandedBack, despite_cancel
from aioreactor.durable.element_views import ElementViews
from aioreactor.durable.explaining import Explaining
from aioreactor.durable.starting import run_id_of
from aioreactor.durable.watching import Watching

__all__ = ["DurableRuns", "HandedBack", "despite_cancel", "run_id_of"]


class DurableRuns(ElementViews, Anew, Explaining, Watching):
    """The runs of one store. Connections are made when first needed, one set per event loop."""
