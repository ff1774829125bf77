"""Adds inputs to a collection: opens them, compares them with existing data, and lets all ranks write together."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.data.rows.collection.additions import add_rows, plan_of, settle
from rankwise.data.rows.collection.agreement import check_fit, check_kept, check_once, say_variables, warn_of_repeats
from rankwise.data.rows.collection.inputs import Input, open_input, spread_collections
from rankwise.data.rows.collection.journal import listed_names, read_manifest, said_where_it_stands, work_folder
from rankwise.data.rows.collection.options import WriteOptions, listed, seed_of
from rankwise.data.rows.collection.ranks import Ranks, joined_ranks
from rankwise.data.rows.collection.union import join_inputs
from rankwise.data.rows.output import MatrixFormat, codecs_of
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise._process.place import Place
    from rankwise.world.value import World

__all__ = ["MatrixFormat", "WriteOptions", "codecs_of", "listed", "write"]


def write(
    path: Path,
    sources: list[Any],
    options: WriteOptions,
    *,
    variables: Callable[[], dict[str, Any] | None],
    world: World | Place | None,
    rng: Any,
    progress: bool | None,
) -> None:
    """Write datasets from inputs, see `DatasetCollection.add_adatas`.

    `variables` returns the tables of variables to keep, by modality; None for an empty collection.
    """
    seed = seed_of(rng)
    wanted: dict[str, Any] = {name: getattr(options, name) for name in ("load_adata", "matrices", "modalities")}
    with (
        joined_ranks(world) as ranks,
        _quiet(wanted=not ranks.is_main),
        said_where_it_stands(path),
        ranks.together(work_folder(path)),
        contextlib.ExitStack() as stack,
    ):
        inputs: list[Input] = []
        passed: list[tuple[Any, str]] = []
        plain = options.load_adata is not None or options.modalities
        for number, (source, is_dataset) in enumerate(spread_collections(sources, path)):
            inputs.append(open_input(source, number, member=is_dataset and not plain, **wanted))
            stack.callback(inputs[-1].close)
            passed.append((source, inputs[-1].label))
        check_once(passed)
        _write_inputs(path, inputs, options, ranks, variables=variables, seed=seed, progress=progress)


def _write_inputs(
    path: Path,
    inputs: list[Input],
    options: WriteOptions,
    ranks: Ranks,
    *,
    variables: Callable[[], dict[str, Any] | None],
    seed: int | None,
    progress: bool | None,
) -> None:
    if not inputs and not options.reshuffle:
        raise ConfigError("add_adatas needs at least one input, got none")
    asked = plan_of(inputs, options, None)
    if ranks.from_main(lambda: asked) != asked:
        raise ConfigError(
            f"rank {ranks.rank} was called with other inputs or parameters for {path} than rank 0: "
            "every rank must make the same call"
        )
    plan = plan_of(inputs, options, seed)
    if ranks.from_main(lambda: settle(path, plan)):
        return
    vars_, sparse = variables(), set[str]()
    warn_of_repeats(inputs, read_manifest(path)["writes"], path)
    if vars_ is not None:
        places = [str(path / name) for name in listed_names(path)]
        with _quiet(wanted=True):  # an existing dataset: ignore oddities
            member = open_input(places[0], 0, member=True)
        check_fit(inputs, member, vars_, path)
        sparse = {name for name, table in member.tables.items() if table.sparse}
        if options.reshuffle:
            members = [
                open_input(place, number, matrices=options.matrices, member=True) for number, place in enumerate(places)
            ]
            check_kept(members, inputs, path)
            inputs = [*members, *inputs]
    chosen: dict[str, Any] = {name: getattr(options, name) for name in ("var_subset", "merge", "join")}
    joined = join_inputs(inputs, vars_=vars_, **chosen, sparse=sparse)
    if ranks.is_main:
        say_variables(joined)
    add_rows(path, joined, options, ranks=ranks, plan=plan, seed=seed, progress=progress)


@contextlib.contextmanager
def _quiet(*, wanted: bool) -> Iterator[None]:
    """Silence warnings if `wanted`: another rank gives the same ones."""
    if not wanted:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
