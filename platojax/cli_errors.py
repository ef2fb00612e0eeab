"""How commands end when they are given what cannot be used."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import typer


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends a command with one line on stderr and exit code 2; warnings are one line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except (ValueError, OSError, ImportError) as error:
            typer.echo("error: " + " ".join(str(error).split()), err=True)
            raise typer.Exit(2) from error
