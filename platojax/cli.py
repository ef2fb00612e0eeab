"""The `platojax` command: tools that work on files; training is `python -m platojax.main`."""

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def platojax() -> None:
    """Tools that work on files; training is `python -m platojax.main`."""
