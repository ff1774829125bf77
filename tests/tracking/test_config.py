"""What is recorded of a run, and compared: its configuration, without its secrets."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rankwise.tracking import RunDir
from rankwise.tracking.config import describe_differences, masked
from rankwise.train.loop.configuration import environment_record
from rankwise.world import World


def opened(path, config, environment):
    return RunDir.open(path, config=config, environment=environment, world=World.single())


NAMES = (
    "api_key apiKey OPENAI_API_KEY --wandb-api-key aws_secret_access_key hf_token token password db.password passwd "
    "client_secret credentials ssh_key nccl_creds"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_secrets_are_masked(name):
    """Under a key, at any depth, after an option and as name=value; numbers and truth values are none."""
    assert masked({"user": [{name: "s3cr3t"}], name: {"deep": ["s3cr3t"]}, f"{name}s": 3}) == {
        "user": [{name: "***"}],
        name: {"deep": ["***"]},
        f"{name}s": 3,
    }
    assert masked(["train.py", f"{name}=s3cr3t"]) == ["train.py", f"{name}=***"]
    option = "--" + name.lstrip("-")
    assert masked([option, "s3cr3t", "--lr", "0.1"]) == [option, "***", "--lr", "0.1"]
    assert masked([option, "--lr"]) == [option, "--lr"]


def test_secrets_inside_urls_are_masked():
    """The password of a user, and what signs a request; the rest stays readable."""
    assert (
        masked("s3://me:s3cr3t@host/path?X-Amz-Signature=abc&part=1")
        == "s3://me:***@host/path?X-Amz-Signature=***&part=1"
    )
    assert masked("https://host/a:b@c") == "https://host/a:b@c"


@pytest.mark.parametrize("name", ["label_key", "key", "pad_token", "tokenizer", "max_tokens", "monkey", "passes", "lr"])
def test_what_decides_the_numbers_is_not_masked(name):
    """Words of models and data that only sound like it are recorded, and so compared."""
    assert masked({name: "value"}) == {name: "value"}


def test_what_may_change_is_told_apart():
    """Keys that make another run, and those that do not; of the latter, one that was not recorded says nothing."""
    old = {"lr": 0.1, "train": {"epochs": 2, "keep": 3}}
    new = {"lr": 0.2, "train": {"epochs": 5, "keep": 3, "log_every": 1}, "more": 1}
    may_change = ("train.epochs", "train.keep", "train.log_every")
    assert describe_differences(old, new, may_change=may_change) == (
        ["lr: 0.1 -> 0.2", "more: (absent) -> 1"],
        ["train.epochs: 2 -> 5"],
    )


def test_secrets_are_not_recorded(tmp_path):
    """In no file of the run; another secret is no other run, one that was recorded before neither."""
    path, private = tmp_path / "run", "s3cr3t"
    config = {"user": {"api_key": private, "url": f"s3://me:{private}@host"}, "argv": [f"--token={private}"]}
    environment = {"command": ["train.py", "--password", private]}
    opened(path, config, environment).close()
    assert not [file for file in path.iterdir() if private in file.read_text()]
    record = json.loads((path / "config.json").read_text())
    record["config"] = config
    (path / "config.json").write_text(json.dumps(record))
    other = {**config, "user": {**config["user"], "api_key": "another"}}
    with opened(path, other, environment) as run:
        assert run.attempt == 2
    assert not [file for file in path.iterdir() if private in file.read_text()]


def test_the_code_version_is_recorded(tmp_path, monkeypatch):
    """The commit of the script's folder, and whether its files differ: in the run directory, and so at the services."""
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))

    def recorded():
        return environment_record(World.single())["code"]

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert recorded() is None
    for command in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert recorded() == {"commit": head, "dirty": False}
    script.write_text("changed\n")
    assert recorded() == {"commit": head, "dirty": True}
