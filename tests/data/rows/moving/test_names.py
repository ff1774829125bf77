"""Every public name, member, argument and default of annbatch is here, or on the list of differences."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[3] / "docs" / "migration_annbatch.md"
ROW = re.compile(r"^\| `([\w.]+)\(([\w]+)\)` \| `?([^|`]+)`? \| `?([^|`]+)`? \|", re.MULTILINE)


def described():
    spec = importlib.util.spec_from_file_location("names", HERE / "names.py")
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    return names.describe("rankwise.data.rows")


OURS, THEIRS = described(), json.loads((HERE / "annbatch_0_3_1.json").read_text())
MEMBERS = [(name, member) for name, members in THEIRS.items() for member in members]


def by_name(arguments):
    return {name: (kind, default) for name, kind, default in arguments}


def label(name, member):
    return name if member == "()" else f"{name}.{member}"


@pytest.mark.parametrize(("name", "member"), MEMBERS, ids=lambda text: text)
def test_every_member_takes_what_it_takes_there(name, member):
    """It exists; every argument has its name and its kind, in the same place; what is new can be left out."""
    theirs, ours = THEIRS[name][member], OURS[name].get(member)
    if not isinstance(theirs, list) or member == "keys":
        assert ours == theirs or (theirs, ours) == ("property", "attribute")
        return
    mine = by_name(ours)
    assert {key: kind for key, (kind, _) in by_name(theirs).items()}.items() <= {
        k: v[0] for k, v in mine.items()
    }.items()
    positional = [key for key, kind, _ in theirs if kind != "KEYWORD_ONLY"]
    assert [key for key, kind, _ in ours if kind != "KEYWORD_ONLY"][: len(positional)] == positional
    assert all(mine[key][1] != "" for key in mine.keys() - by_name(theirs).keys())


def test_other_defaults_are_those_of_the_page():
    """The table of arguments on the page holds each argument with another default, and nothing else."""
    found = set()
    for name, member in MEMBERS:
        if isinstance(THEIRS[name][member], list) and member != "keys":
            mine = by_name(OURS[name][member])
            for key, _, default in THEIRS[name][member]:
                if mine[key][1] != default:
                    found.add((label(name, member), key, default, mine[key][1]))
    assert {tuple(row) for row in ROW.findall(PAGE.read_text())} == found
    assert len(found) == 4


def test_imports_of_the_page_are_all_there_are():
    """The page's table of imports names every public name of annbatch."""
    imports = PAGE.read_text().split("## ")[0]
    assert [name for name in THEIRS if not re.search(rf"\b{name.rpartition('.')[2]}\b", imports)] == []
