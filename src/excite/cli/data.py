"""The data sets: list, fetch and verify them."""

import click

from excite.cli.shared import json_option, show


@click.group()
def data() -> None:
    """List, fetch and verify data sets."""


@data.command(name="list", epilog="Example: excite data list")
@json_option
def data_list(as_json: bool) -> None:
    """List the data sets, and which of them are here."""
    from dataclasses import asdict

    from excite.data import listing

    statuses = listing()
    show(as_json, [asdict(status) for status in statuses], "\n".join(map(str, statuses)))


@data.command(epilog="Example: excite data fetch cifar10")
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch the data set NAME into the data directory (EXCITE_DATA, or the user's cache)."""
    from excite.data import fetch as fetch_data

    click.echo(fetch_data(name))


@data.command(epilog="Example: excite data verify cifar10")
@click.argument("name")
def verify(name: str) -> None:
    """Check the data set NAME against its known SHA-256; for CIFAR-100, against the one that it was fetched with."""
    from excite.data import verify as verify_data

    click.echo(f"{name}: {verify_data(name)}")
