"""`rankwise data`: commands about stores of arrays. Each imports the library late."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankwise.cli.run import path_option, place_argument
from rankwise.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from rankwise.data.contract import DType
    from rankwise.data.store.catalogue.lookup import Catalogue
    from rankwise.data.store.meta.values import ArrayMeta

data_commands = typer.Typer(
    name="data",
    help="Inspect Zarr stores: index their content, predict the cost of reading them, and measure it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXAMPLES = (
    "Examples:  rankwise data index /data/screen.zarr -o screen.idx  |  "
    "rankwise data index /data/* s3://bucket/more --workers 32 --skip-bad --json -o all.idx"
)
_MOST_BAD = 20  # unreadable entries that are printed; the catalogue and --json have all
_MOST_KINDS = 12  # kinds of arrays that are printed
_SHORT = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"}

# what `audit` predicts, `bench` measures: the same arguments
_Uris = Annotated[
    list[str], place_argument(metavar="URI...", help="Arrays, images, plates, folders of these, or catalogues.")
]
_Crop = Annotated[str, typer.Option(metavar="Z,Y,X", help="Extents of a crop along the last axes, without channels.")]
_Channels = Annotated[
    int | None,
    typer.Option(min=1, help="Number of channels of a crop, if --crop does not contain their axis. Default: all."),
]
_Dtype = Annotated[str, typer.Option(help="Dtype of the batch; native: the dtype of the store.")]
_Align = Annotated[
    str, typer.Option(metavar="none|chunk", help="Origins of crops: anywhere (none), or at chunk edges (chunk).")
]
_Batch = Annotated[int, typer.Option(min=1, help="Crops per batch; a chunk that several crops share is decoded once.")]
_Threads = Annotated[int | None, typer.Option(min=1, help="Number of decoding threads. Default: the usable cores.")]


@data_commands.callback()
def _describe() -> None:
    """Inspect Zarr stores: index their content, predict the cost of reading them, and measure it."""


@data_commands.command("audit", no_args_is_help=True)
def audit_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    uris: _Uris,
    crop: _Crop,
    channels: _Channels = None,
    dtype: _Dtype = "float32",
    align: _Align = "none",
    batch: _Batch = 8,
    threads: _Threads = None,
    sample: Annotated[int, typer.Option(min=0, help="Number of files per array whose sizes are read; 0: none.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predict the cost of reading random crops of stored arrays, and suggest a better layout. Reads no data."""
    from rich.console import Console

    from rankwise.data.crops.audit.display import audit_facts, show_audit
    from rankwise.data.crops.audit.judgement import AuditOptions, audit

    options = AuditOptions(
        crop=_parse_extents(crop),
        channels=channels,
        dtype=_parse_dtype(dtype),
        aligned=_parse_align(align),
        batch=batch,
        threads=threads,
        sample_files=sample,
    )
    report = audit(uris, options)
    if as_json:
        print(json.dumps(audit_facts(report), indent=1))
    else:
        show_audit(report, Console())


@data_commands.command("bench", no_args_is_help=True)
def bench_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    uris: _Uris,
    crop: _Crop,
    channels: _Channels = None,
    dtype: _Dtype = "float32",
    align: _Align = "none",
    batch: _Batch = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Number of timed batches.")] = 20,
    threads: _Threads = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random crop origins.")] = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Save the measured decoding speeds for later audits on this machine.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure the cost of reading random crops, compare it with the audit's prediction, and name the bottleneck."""
    from rich.console import Console

    from rankwise.data.crops.audit.display import bench_facts, show_bench
    from rankwise.data.crops.audit.judgement import AuditOptions
    from rankwise.data.crops.audit.measurement import keep_rates, measure

    options = AuditOptions(
        crop=_parse_extents(crop),
        channels=channels,
        dtype=_parse_dtype(dtype),
        aligned=_parse_align(align),
        batch=batch,
        threads=threads,
    )
    report = measure(uris, options, rounds=rounds, seed=seed)
    if as_json:
        print(json.dumps(bench_facts(report), indent=1))
    else:
        show_bench(report, Console())
    if calibrate:
        typer.echo(f"decoding speeds are saved in {keep_rates(report)}", err=True)


@data_commands.command("index", no_args_is_help=True, epilog=_EXAMPLES)
def index_command(
    uris: Annotated[
        list[str],
        place_argument(metavar="URI", help="Arrays, groups, images, plates, or folders that contain these."),
    ],
    output: Annotated[Path, path_option("--output", "-o", metavar="IDX", help="Catalogue file to write.")],
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of reading threads; more threads help if storage has a high latency."
        ),
    ] = 8,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Write the catalogue even if some entries could not be read.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a catalogue of all images and arrays under the URIs, so that they open without accessing the stores.

    Exit codes: 0 written, 1 entries could not be read (without --skip-bad) or none was found, 2 wrong usage.
    """
    from rankwise.data.store.catalogue.lookup import build_catalogue

    with _progress() as show:
        catalogue = build_catalogue(uris, workers=workers, progress=show)
    failed = not len(catalogue.arrays()) or (bool(catalogue.bad) and not skip_bad)
    written = None if failed else catalogue.save(output)
    summary = _summarize(catalogue, output=str(output), written_bytes=written)
    print(json.dumps(summary, indent=2) if as_json else _text_of(summary))
    _complain(catalogue, written=written is not None)
    if failed:
        sys.exit(1)


def _complain(catalogue: Catalogue, *, written: bool) -> None:
    """Print to stderr what could not be read, and what to do."""
    for place, reason in list(catalogue.bad.items())[:_MOST_BAD]:
        print(f"not read: {place}: {reason}", file=sys.stderr)
    if len(catalogue.bad) > _MOST_BAD:
        print(f"... and {len(catalogue.bad) - _MOST_BAD} more (--json lists all)", file=sys.stderr)
    if catalogue.bad and not written:
        print("nothing was written: fix or leave out these entries, or add --skip-bad", file=sys.stderr)
    elif not catalogue.arrays():
        print("no Zarr array was found; nothing was written", file=sys.stderr)


def _progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Return a counter line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    return _Spinner()


class _Spinner:
    """Shows on stderr how many entries were found and how many are left."""

    def __init__(self) -> None:
        from rich.console import Console

        self._status: Any = Console(stderr=True).status("searching ...")

    def __enter__(self) -> Callable[[int, int], None]:
        self._status.start()
        return self._show

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def _show(self, found: int, pending: int) -> None:
        self._status.update(f"{found} images found, {pending} places left to search")


def _summarize(catalogue: Catalogue, *, output: str, written_bytes: int | None) -> dict[str, Any]:
    """Return counts of a catalogue's content, as JSON values.

    Args:
        catalogue: the catalogue.
        output: file to which it was, or would have been, written.
        written_bytes: size of the file; None if it was not written.
    """
    from rankwise.data.store.meta.tree import read_meta

    refs = catalogue.images()
    metas = [read_meta(place, nodes=catalogue) for place in catalogue.arrays()]
    names = Counter(ref.name for ref in refs)
    return {
        "roots": list(catalogue.roots),
        "output": output,
        "written_bytes": written_bytes,
        "num_images": sum(ref.kind == "image" for ref in refs),
        "num_plain_arrays": sum(ref.kind == "array" for ref in refs),
        "num_plates": len({ref.plate for ref in refs if ref.plate}),
        "num_wells": len({(ref.plate, ref.well) for ref in refs if ref.well}),
        "num_arrays": len(metas),
        "decoded_bytes": sum(math.prod(meta.shape) * meta.dtype.itemsize for meta in metas),
        "kinds": [{"what": what, "num_arrays": count} for what, count in Counter(map(_kind, metas)).most_common()],
        "same_name": sorted(name for name, count in names.items() if count > 1),
        "bad": [{"place": place, "reason": reason} for place, reason in catalogue.bad.items()],
    }


def _text_of(summary: dict[str, Any]) -> str:
    """Return a summary as a few lines."""
    images, arrays, bad = (summary[key] for key in ("num_images", "num_plain_arrays", "bad"))
    parts = f"{summary['num_plates']} plates, {summary['num_wells']} wells"
    size = _amount(summary["decoded_bytes"])
    lines = [
        f"found {images} images and {arrays} plain arrays ({parts}): {summary['num_arrays']} arrays, {size} decoded"
    ]
    lines += [f"  {kind['num_arrays']:>8}  {kind['what']}" for kind in summary["kinds"][:_MOST_KINDS]]
    if len(summary["kinds"]) > _MOST_KINDS:
        lines.append(f"            and {len(summary['kinds']) - _MOST_KINDS} more kinds (--json lists all)")
    if summary["same_name"]:
        lines.append(
            f"{len(summary['same_name'])} names belong to several images, for example {summary['same_name'][0]!r}: "
            "index their parent folder, so that their names differ"
        )
    if bad:
        lines.append(f"{len(bad)} entries could not be read")
    if summary["written_bytes"] is not None:
        lines.append(f"wrote {summary['output']} ({_amount(summary['written_bytes'])})")
    return "\n".join(lines)


def _kind(meta: ArrayMeta) -> str:
    path = "by zarr-python" if meta.codec.kind == "zarr" else "by the fast decoders"
    codec = meta.codec.why if meta.codec.kind == "zarr" else meta.codec.kind
    sharded = "sharded " if meta.sharded else ""
    return f"{sharded}v{meta.zarr_format} {meta.dtype.name}, {codec}: {path}"


def _amount(num_bytes: int) -> str:
    size, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _parse_extents(word: str) -> tuple[int, ...]:
    """Turn "16,128,128" (or "16x128x128") into extents.

    Raises:
        ConfigError: the numbers are not positive.
    """
    parts = word.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--crop must be extents >= 1 separated by commas, such as 16,128,128, got {word!r}")
    return tuple(int(part) for part in parts)


def _parse_dtype(word: str) -> DType | None:
    """Turn "float32", "f32", "bf16", "uint16" into a dtype; "native" (as stored) into None.

    Raises:
        ConfigError: there is no such dtype.
        MissingExtraError: bfloat16 is given, but its package is not installed.
    """
    import numpy as np

    name = _SHORT.get(word, word)
    if name == "native":
        return None
    if name == "bfloat16":
        with needs_extra("bfloat16 needs ml_dtypes: pip install 'rankwise[data]'"):
            from ml_dtypes import bfloat16
        narrow: DType = np.dtype(bfloat16)
        return narrow
    try:
        return np.dtype(name)
    except TypeError as error:
        raise ConfigError(f"--dtype must be native, float32, bfloat16, float16, uint8, ..., got {word!r}") from error


def _parse_align(word: str) -> bool:
    """Turn `--align` into whether origins lie on the grid of chunks.

    Raises:
        ConfigError: an unknown word.
    """
    if word not in {"none", "chunk"}:
        raise ConfigError(f'--align must be "none" or "chunk", got {word!r}')
    return word == "chunk"
