"""Launch lines of shell, sbatch, Docker and YAML files."""

import pytest

from rankwise.diagnose.lint import check_source, source_from_text
from rankwise.diagnose.lint.fixes import mended


def codes(name, text):
    return [(found.rule.code, found.line) for found in check_source(source_from_text(text, name))]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("run.sh", "export NCCL_TIMEOUT=30\n", [("RW602", 1)]),
        ("run.sh", "NCCL_TIMEOUT=30 torchrun train.py\n", [("RW602", 1)]),
        ("run.sh", "torchrun \\\n  --master_port 80000 \\\n  train.py\n", [("RW601", 2)]),
        ("run.sh", "torchrun --rdzv-endpoint=head:99999 train.py\n", [("RW601", 1)]),
        ("run.sh", "# NCCL_TIMEOUT=30\necho 'NCCL_TIMEOUT=30'\n", []),
        ("run.sh", "cd x && python3 -m torch.distributed.launch --nproc_per_node 2 a.py; ls\n", [("RW605", 1)]),
        ("run.sh", "export NCCL_TIMEOUT=1  # rankwise: ignore[RW602] a plugin\n", []),
        ("Dockerfile", "FROM x\nENV NCCL_TIMEOUT=30\nENV NCCL_TIMEOUT_MS 30\n", [("RW602", 2), ("RW602", 3)]),
        ("Dockerfile", 'CMD ["torchrun", "--master-port", "80000", "train.py"]\n', [("RW601", 1)]),
        (
            "job.yaml",
            "env:\n- name: NCCL_TIMEOUT\n  value: '30'\n- name: MASTER_PORT\n  value: '80000'\n",
            [("RW602", 3), ("RW601", 5)],
        ),
        ("job.yaml", "env:\n  NCCL_TIMEOUT: 30\n", [("RW602", 2)]),
        ("job.yaml", "command: [torchrun, --nnodes, '2', train.py]\n", [("RW613", 1)]),
        ("job.yaml", "run: |\n  python -m torch.distributed.launch train.py\n", [("RW605", 2)]),
        ("notes.yaml", "names: [a, b]\n", []),
    ],
)
def test_lines(name, text, wanted):
    """What is found in which line."""
    assert codes(name, text) == wanted


def test_a_renamed_variable_is_mended():
    """The word changes, the rest of the line stays."""
    after, left, number = mended(source_from_text("export NCCL_BLOCKING_WAIT=1  # keep\n", "run.sh"), check_source)
    assert after.source == "export TORCH_NCCL_BLOCKING_WAIT=1  # keep\n"
    assert (left, number) == ([], 1)
