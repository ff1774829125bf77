"""`Platform` and `Device`: fields, defaults, refusals."""

import pytest

from rankwise import Device, Platform
from rankwise.errors import ConfigError


def test_defaults_are_those_of_ddpw():
    """The documented defaults, so that scripts move over by changing imports."""
    platform = Platform()
    assert (platform.name, platform.device, platform.partition) == ("ddpw", Device.GPU, "general")
    assert (platform.n_nodes, platform.n_gpus_per_node, platform.n_cpus_per_node, platform.mem_per_node) == (
        1,
        1,
        1,
        32,
    )
    assert (platform.spawn_method, platform.ipc_protocol, platform.master_addr) == ("spawn", "tcp", "localhost")
    assert (platform.ipc_groups, platform.backend, platform.seed, platform.timeout_min) == ([], None, 1889, 2880)
    assert (platform.slurm_additional_parameters, platform.console_logs) == (None, "./.output/logs")
    assert (platform.verbose, platform.upon_finish) == (True, None)


def test_devices_by_name():
    """Names are taken in any case; others are refused with the list."""
    assert Device.from_str("GPU") is Device.GPU
    assert Platform(device="Cpu").device is Device.CPU
    with pytest.raises(ConfigError, match="cpu, gpu, slurm, mps"):
        Device.from_str("tpu")


def test_sizes():
    """world_size counts ranks on all nodes, requires_ipc whether there is anybody to talk to."""
    assert Platform(n_nodes=2, n_gpus_per_node=3).world_size == 6
    assert Platform(device="cpu", num_ranks=4).world_size == 4
    assert Platform(num_ranks=2).requires_ipc
    assert not Platform(num_ranks=1).requires_ipc
    assert not Platform(num_ranks=2, ipc_groups=None).requires_ipc


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_ranks": 0}, "num_ranks"),
        ({"num_ranks": 2, "n_gpus_per_node": 3}, "differ"),
        ({"n_gpus_per_node": 0}, "n_gpus_per_node"),
        ({"device": "slurm", "n_gpus_per_node": 2, "n_cpus_per_node": 3}, "evenly"),
        ({"device": "slurm", "num_ranks": 2, "n_cpus_per_node": 3}, "evenly"),
        ({"spawn_method": "threads"}, "spawn_method"),
        ({"ipc_protocol": "udp"}, "ipc_protocol"),
        ({"ipc_protocol": "file", "master_addr": "somewhere"}, "with a slash in it"),
        ({"ipc_protocol": "file", "master_port": 2000}, "uses no port"),
        ({"device": "slurm", "console_logs": None}, "needs a folder"),
        ({"master_port": 70000}, "master_port"),
        ({"master_port": "²"}, "master_port"),
        ({"num_ranks": 3, "ipc_groups": [[0, 1], [1, 2]]}, "exactly once"),
        ({"num_ranks": 3, "ipc_groups": [[0, 1]]}, "exactly once"),
    ],
)
def test_what_cannot_work_is_refused(fields, words):
    """Wrong values are refused on construction, and the message names the field."""
    with pytest.raises(ConfigError, match=words):
        Platform(**fields)


def test_several_nodes_are_for_slurm():
    """Without Slurm a platform is one machine; the error says what to do."""
    with pytest.raises(ConfigError, match="device='slurm'"):
        Platform(device="cpu", n_nodes=2).check_machine()


def test_the_file_through_which_ranks_meet(tmp_path):
    """In the folder that is named, one for each launch; on Slurm else among the logs, which the nodes see too."""
    assert Platform().store_file("a") is None
    assert Platform(ipc_protocol="file").store_file("a") is None, "in a folder of the launch"
    named = Platform(ipc_protocol="file", master_addr=str(tmp_path))
    assert named.store_file("a") == tmp_path / "rankwise-meeting-a"
    slurm = Platform(device="slurm", ipc_protocol="file", console_logs=str(tmp_path))
    assert slurm.store_file("b") == tmp_path / "rankwise-meeting-b"


def test_print_shows_every_field(capsys):
    """Platform.print() lists all fields, the address too, and the number of ranks."""
    Platform(device="cpu", num_ranks=2).print()
    text = capsys.readouterr().out
    assert "master_addr" in text
    assert text.splitlines()[-1].split() == ["world_size", "2"]
