"""All checks, causes before effects: variables, host, devices, ranks, group, data."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from rankwise._process.place import find_place
from rankwise.diagnose.doctor.check import SECTIONS, Check, failed, not_run
from rankwise.diagnose.doctor.group import check_group
from rankwise.diagnose.doctor.host import check_data, check_devices, check_host
from rankwise.diagnose.doctor.variables import check_variables
from rankwise.errors import ConfigError, WorldError


def choose_sections(only: Collection[str] = (), skip: Collection[str] = ()) -> frozenset[str]:
    """Return the selected sections.

    Raises:
        ConfigError: a section does not exist, or none is left.
    """
    unknown = sorted({*only, *skip} - set(SECTIONS))
    if unknown:
        raise ConfigError(f"no section {', '.join(map(repr, unknown))}; the sections are {', '.join(SECTIONS)}")
    left = frozenset(only or SECTIONS) - frozenset(skip)
    if not left:
        raise ConfigError("nothing is left to check: --skip names every section that --only names")
    return left


def check_here(sections: Collection[str] = SECTIONS) -> list[Check]:
    """Check this process's variables, host and devices, without starting processes."""
    parts: Mapping[str, Callable[[], list[Check]]] = {
        "variables": lambda: check_variables(os.environ),
        "host": check_host,
        "devices": check_devices,
    }
    return [check for name, look in parts.items() if name in sections for check in look()]


def examine(
    *,
    ranks: int = 2,
    deadline_s: float = 60.0,
    data: str | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
) -> tuple[list[Check], bool]:
    """Examine this machine, or the job under a launcher; return the checks and whether this rank should print them.

    Args:
        ranks: number of gloo ranks of the probe if there is no launcher.
        deadline_s: time limit in seconds for a probe or the ranks of the job.
        data: arguments of `rankwise data bench`, a store and the extent of a crop; None: read no data.
        only: sections to check; empty: all. In a launched job the same on every rank.
        skip: sections to skip.

    Raises:
        ConfigError: a section does not exist.
    """
    sections = choose_sections(only, skip)
    checks = check_here(sections)
    is_main = True
    try:
        place = find_place(os.environ)
    except WorldError as error:
        return [*checks, failed("ranks", "ranks of a job", str(error), "let a launcher set the variables")], True
    launched = place.world_size > 1
    if launched and sections & {"network", "ranks", "group"}:
        from rankwise.diagnose.doctor.job import check_job

        found, is_main = check_job(place, deadline_s, checks, with_group="group" in sections)
        checks += [check for check in found if check.section in sections or check.status == "fail"]
    elif launched:
        is_main = place.rank == 0
    else:
        if "ranks" in sections:
            mend = "rankwise run --nproc 2 -m rankwise doctor, or srun, torchrun"
            checks.append(not_run("ranks", "ranks of a job", "no launcher started several ranks", mend))
        checks += check_group(ranks, deadline_s) if "group" in sections else []
    if is_main and "data" in sections:
        checks.append(check_data(data))
    return checks, is_main
