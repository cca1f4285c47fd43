"""Sessions for people and for continuous integration: ``nox -s lint types tests docs bench build``."""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "types", "tests", "docs"]
PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session
def lint(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("mypy")
    session.run("pyright")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "auto", "--cov", "--cov-report=term-missing:skip-covered")


@nox.session
def docs(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("pytest", "tests/docs")


@nox.session
def bench(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    session.install("build")
    session.run("python", "-m", "build", "--outdir", session.create_tmp())
