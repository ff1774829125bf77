"""What the words after the options mean."""

import pytest

from rankwise.errors import ConfigError
from rankwise.launch.target import parse_target


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "odd:name").touch()
    (tmp_path / "parts").mkdir()


@pytest.mark.parametrize(
    ("words", "as_module", "kind"),
    [
        (["train.py", "-x", "1"], False, "script"),
        (["odd:name"], False, "script"),
        (["package.train:main", "a"], False, "function"),
        (["package.train", "a"], True, "module"),
    ],
)
def test_kinds(words, as_module, kind):
    """A file that exists is a script; module:function is a function; -m makes a module; the rest are arguments."""
    target = parse_target(words, as_module=as_module)
    assert (target.kind, target.name, target.args) == (kind, words[0], tuple(words[1:]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to run"),
        (["trian.py"], "did you mean 'train.py'"),
        (["package.train"], "-m package.train"),
        (["--late"], "put options of rankwise before the script"),
        (["sub/none.py"], "no script"),
        (["parts"], "'parts' is a folder without __main__.py"),
    ],
)
def test_mistakes_name_the_mend(words, message):
    """A near name, a forgotten -m, an option at the wrong place."""
    with pytest.raises(ConfigError, match=message):
        parse_target(words)
